"""Logs with a request id on every line, and the counters behind ``/metrics``."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the series and say no more than a restart does

request_id_var: ContextVar[str] = ContextVar("request_id", default="-")
"""Id of the request being answered; ``-`` outside of one."""

_SHARED = "PROMETHEUS_MULTIPROC_DIR" in os.environ
"""Whether this is one of several serving processes, whose figures lie in files that any of them adds up."""
_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


_ROW_VALUES = re.compile(r"^DETAIL:.*?(?=^(?:CONTEXT:|\[SQL:|The above exception|Traceback )|\Z)", re.MULTILINE | re.DOTALL)
"""What PostgreSQL quotes of a row it refuses, which is what a client sent."""


class _Discreet(logging.Formatter):
    def formatException(self, ei: Any) -> str:  # noqa: N802 (the name is logging's)
        """Render a traceback without the values that a database quotes in its error."""
        return _ROW_VALUES.sub("DETAIL: left out\n", super().formatException(ei))


class JsonFormatter(_Discreet):
    """One JSON object a line: time, level, logger, message, request id, whatever ``extra`` holds, and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Render a record."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": request_id_var.get(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class _TextFormatter(_Discreet):
    def format(self, record: logging.LogRecord) -> str:
        """Render a record as a line of text."""
        return f"{super().format(record)} [{request_id_var.get()}]"


def configure_logging(level: str, log_format: str, quiet: Iterable[str] = ()) -> None:
    """Send everything, the server's own lines included, to standard error in one format; of ``quiet`` loggers warnings only."""
    handler = logging.StreamHandler(sys.stderr)
    text = _TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # its line a request has the address, and so what somebody plans
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = name != "uvicorn.access"  # the request middleware writes one line per request already
    for name in quiet:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level]))


class _Asked(Collector):
    """Figures that are read whenever they are collected."""

    def __init__(self, read: Callable[[], Iterable[tuple[str, str, float]]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """The figures as they are now."""
        for name, meaning, value in self._read():
            yield GaugeMetricFamily(f"shardplan_{name}", meaning, value)


class Metrics:
    """What one application counts: requests, how long they took by route, and the state of its pool of connections.

    What the planner found is counted once a process, by ``count_plan``; ``render`` gives both, of all serving processes together.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("shardplan_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry)
        self._in_progress = self._gauge("requests_in_progress", "Requests read but not answered to the end.")
        self._seconds = Histogram(
            "shardplan_request_seconds", "Time from the first byte read to the last byte sent.", ("route",),
            buckets=_BUCKETS_S, registry=self.registry,
        )  # fmt: skip
        self._watched: list[tuple[Gauge, Callable[[], float]]] = []
        self._everybodys = CollectorRegistry()

    def begin(self) -> None:
        """Count a request as being answered."""
        self._in_progress.inc()

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request as answered; ``route`` is the path pattern, never the path, so that labels stay few."""
        self._in_progress.dec()
        self._requests.labels(method if method in _METHODS else "other", route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        for gauge, read in self._watched:
            gauge.set(read())

    def watch(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        """Show a figure of this process, such as connections in use: read when somebody asks, or else after each request."""
        gauge = self._gauge(name, meaning)
        if _SHARED:
            self._watched.append((gauge, read))
        else:
            gauge.set_function(read)

    def ask(self, read: Callable[[], Iterable[tuple[str, str, float]]]) -> None:
        """Show figures that are the same for every process, such as what waits in the database: read only when somebody asks.

        Args:
            read: names, meanings and values.
        """
        self._everybodys.register(_Asked(read))

    def render(self) -> str:
        """The text that a Prometheus server reads."""
        asked = generate_latest(self._everybodys)
        if not _SHARED:
            return (generate_latest(self.registry) + generate_latest(_PLANNER) + asked).decode()
        everybody = CollectorRegistry()
        MultiProcessCollector(everybody)  # type: ignore[no-untyped-call]
        return (generate_latest(everybody) + asked).decode()

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"shardplan_{name}", meaning, multiprocess_mode="livesum", registry=self.registry)


_PLANNER = CollectorRegistry()
_PLANS = Counter("shardplan_plans", "Plans made, by verdict.", ("verdict",), registry=_PLANNER)
_REJECTIONS = Counter("shardplan_rejections", "Candidates rejected by the search, by reason.", ("reason",), registry=_PLANNER)
_CANDIDATES = Histogram(
    "shardplan_search_candidates", "Candidates evaluated for one plan.", buckets=(1, 10, 100, 1e3, 1e4, 1e5, 1e6), registry=_PLANNER
)
_NUMBER = re.compile(r"\b\d[\d,.]+\b")
_MAX_REASONS = 100
_reasons: set[str] = set()


def count_plan(verdict: str, candidates: int, rejected: Iterable[tuple[str, int]]) -> None:
    """Count a plan, the size of its search, and what the search rejected.

    Numbers of two digits and more are taken out of the reasons, and past a hundred reasons the rest is ``other``: labels
    that grow with requests would fill the memory of whoever collects them.
    """
    _PLANS.labels(verdict).inc()
    _CANDIDATES.observe(candidates)
    for reason, count in rejected:
        known = _NUMBER.sub("N", reason)
        if known in _reasons or len(_reasons) < _MAX_REASONS:
            _reasons.add(known)
        else:
            known = "other"
        _REJECTIONS.labels(known).inc(count)
