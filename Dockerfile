FROM python:3.11-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[hub,telemetry]"

FROM python:3.11-slim
RUN useradd --system --create-home --home-dir /data shardplan
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels 'shardplan[hub,telemetry]' && rm -rf /wheels
USER shardplan
WORKDIR /data
ENV PYTHONUNBUFFERED=1 SHARDPLAN_HOST=0.0.0.0 SHARDPLAN_PORT=8000
EXPOSE 8000
# The schema is brought up to date when the service starts, or by `shardplan migrate` where SHARDPLAN_MIGRATE is false.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]
CMD ["shardplan", "serve"]
