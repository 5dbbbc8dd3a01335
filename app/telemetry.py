"""Optional OpenTelemetry traces: requests and database statements, sent where the standard ``OTEL_*`` variables say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI
from sqlalchemy import Engine

from app import ENGINE_VERSION

_PATH_KEYS = ("http.target", "url.path", "http.url", "url.full")
_QUERY_KEYS = ("url.query",)
_UNGUESSABLE = re.compile(r"(?<=/)[A-Za-z0-9_-]{20,}")
_UNCOUNTED = "healthz,readyz,metrics,static"


def start(app: FastAPI, engine: Engine) -> Callable[[], None]:
    """Trace an application and its database; returns what sends the rest and stops.

    Ids of plans are left out of paths, since whoever knows one reads the plan, and so are query strings. Bodies and the
    values of statements are never sent.

    Raises:
        RuntimeError: the libraries of the ``telemetry`` extra are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
        from opentelemetry.instrumentation.sqlalchemy import SQLAlchemyInstrumentor
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise RuntimeError("SHARDPLAN_TELEMETRY needs OpenTelemetry: pip install 'shardplan[telemetry]'") from error
    known = Resource({SERVICE_NAME: "shardplan", SERVICE_VERSION: ENGINE_VERSION})
    provider = TracerProvider(resource=known.merge(Resource.create()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    FastAPIInstrumentor.instrument_app(
        app, tracer_provider=provider, excluded_urls=_UNCOUNTED, exclude_spans=["receive", "send"], server_request_hook=_discreet
    )
    statements = SQLAlchemyInstrumentor()
    # Its list of releases is behind SQLAlchemy's; the events it listens to are the same, and a test sees them arrive.
    statements.instrument(engine=engine, tracer_provider=provider, skip_dep_check=True)

    def stop() -> None:
        statements.uninstrument()
        FastAPIInstrumentor.uninstrument_app(app)
        provider.shutdown()

    return stop


def _discreet(span: Any, _scope: Mapping[str, Any]) -> None:
    given = dict(span.attributes or {})
    for key in _PATH_KEYS:
        if key in given:
            span.set_attribute(key, _UNGUESSABLE.sub("{id}", str(given[key]).partition("?")[0]))
    for key in _QUERY_KEYS:
        if key in given:
            span.set_attribute(key, "")
