"""Logs with a request id on every line, and the counters behind ``/metrics``."""

from __future__ import annotations

import bisect
import json
import logging
import sys
import threading
from collections import Counter
from contextvars import ContextVar
from datetime import UTC, datetime
from itertools import accumulate

request_id_var: ContextVar[str] = ContextVar("request_id", default="-")
"""Id of the request being answered; ``-`` outside of one."""

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


class JsonFormatter(logging.Formatter):
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


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Render a record as a line of text."""
        return f"{super().format(record)} [{request_id_var.get()}]"


def configure_logging(level: str, log_format: str) -> None:
    """Send everything, the server's own lines included, to standard error in one format."""
    handler = logging.StreamHandler(sys.stderr)
    text = _TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = name != "uvicorn.access"  # the request middleware writes one line per request already


class Metrics:
    """Requests by method, route and status, and a histogram of how long they took."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets = [0] * (len(_BUCKETS_S) + 1)
        self._total_s = 0.0

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request; ``route`` is the path pattern, never the path, so that labels stay few."""
        method = method if method in _METHODS else "other"
        with self._lock:
            self._requests[method, route, status] += 1
            self._buckets[bisect.bisect_left(_BUCKETS_S, seconds)] += 1
            self._total_s += seconds

    def render(self) -> str:
        """The text that a Prometheus server reads."""
        with self._lock:
            requests, buckets, total_s = dict(self._requests), list(self._buckets), self._total_s
        lines = [
            "# HELP shardplan_requests_total Requests answered.",
            "# TYPE shardplan_requests_total counter",
            *(
                f'shardplan_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'
                for (method, route, status), count in sorted(requests.items())
            ),
            "# HELP shardplan_request_seconds Time from the first byte read to the last byte sent.",
            "# TYPE shardplan_request_seconds histogram",
        ]
        bounds = [*(f"{bound:g}" for bound in _BUCKETS_S), "+Inf"]
        cumulative = list(accumulate(buckets))
        lines += [f'shardplan_request_seconds_bucket{{le="{bound}"}} {count}' for bound, count in zip(bounds, cumulative, strict=True)]
        lines += [f"shardplan_request_seconds_sum {total_s:.6f}", f"shardplan_request_seconds_count {cumulative[-1]}"]
        return "\n".join(lines) + "\n"
