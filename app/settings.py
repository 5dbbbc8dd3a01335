"""What an operator can set, read once at start from ``SHARDPLAN_*`` environment variables."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
"""A name or address as it stands in a ``Host`` header, a star in front for every name below it."""


class AppSettings(BaseSettings):
    """Settings of the service; every default is good for one person on one machine.

    Attributes:
        database_url: SQLite file or PostgreSQL, as an SQLAlchemy address; ``postgres://`` is understood.
        migrate: whether the service applies migrations when it starts; otherwise it waits until ``shardplan migrate`` has.
        host, port: where ``make run`` listens.
        workers: processes that serve on that address; planning takes one core each.
        log_level, log_format: how much is logged, and whether as lines of JSON or of text.
        telemetry: whether traces are sent to an OpenTelemetry collector; the standard ``OTEL_*`` variables say which.
        max_body_bytes: largest request body; a config.json is a few kilobytes, the largest known 60 KB.
        max_json_depth: deepest nesting of objects and arrays in a JSON body.
        fetch_models: whether ``hf_id`` may be fetched over the network. Off, so that a plan needs nothing outside.
        fetch_timeout_s: longest time such a fetch may take in all.
        hub_url: where models are fetched from, such as a mirror of your own; only one that is named here may be on a private network.
        search_timeout_s: longest time one request is searched; then the best that was found is the answer, and says so. As long may a
            large search wait until others end; as many run at once as there are CPUs.
        database_connect_timeout_s: longest wait for a connection, a new one or a free one.
        database_statement_timeout_s: longest run of one statement; on SQLite longest wait for the write lock.
        database_idle_timeout_s: longest silence inside a transaction, and of a peer that no longer acknowledges; PostgreSQL only.
        database_pool_size, database_max_overflow: connections kept by one process, and how many more it opens when those are in use.
        drain_s: how long ``/readyz`` answers 503 after SIGTERM before new connections are refused.
        shutdown_timeout_s: longest wait for running requests after that.
        page_size_max: most saved plans in one page of a list.
        max_sweep_body_bytes: largest body of ``POST /sweeps``.
        sweep_requests_max, sweep_plans_max: requests of one sweep at most; the latter where whole plans are wanted.
        sweeps_waiting_max: sweeps at most that wait or run.
        sweep_keep_days: how long a sweep is kept after its end.
        sweep_lease_s: after how long without a sign of life what a worker has begun is given to another.
        calibrate: whether answers show what runs measured here make of them.
        list_plans: whether saved plans are listed and searched; without, a plan is read only by who has its address.
        require_keys: whether every request needs an API key, made by ``shardplan keys create``.
        allowed_hosts: names, with commas, this service is reached by, such as ``plans.example.org, *.internal``; empty for any.
        body_timeout_s: longest time from the first byte of a body to its last.
        rate_limit: requests one client may send, such as ``60/minute`` or ``10/second;1000/hour``; empty for any number.
        trusted_proxies: addresses and networks, with commas, whose ``X-Forwarded-For`` says who the client is, and whose
            ``X-Forwarded-Proto`` whether it came by https.
    """

    model_config = SettingsConfigDict(env_prefix="SHARDPLAN_", frozen=True)

    database_url: str = "sqlite:///shardplan.db"
    migrate: bool = True
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    workers: int = Field(1, ge=1, le=256)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["json", "text"] = "json"
    telemetry: bool = False
    max_body_bytes: int = Field(2**20, ge=2**10)
    max_json_depth: int = Field(64, ge=8, le=512)
    fetch_models: bool = False
    fetch_timeout_s: float = Field(5.0, gt=0)
    hub_url: str = Field("https://huggingface.co", pattern=r"^https?://[^\s/]+")
    search_timeout_s: float = Field(30.0, gt=0)
    database_connect_timeout_s: int = Field(5, ge=1)
    database_statement_timeout_s: int = Field(10, ge=1)
    database_idle_timeout_s: int = Field(30, ge=1)
    database_pool_size: int = Field(10, ge=1)
    database_max_overflow: int = Field(10, ge=0)
    drain_s: float = Field(2.0, ge=0)
    shutdown_timeout_s: int = Field(20, ge=1)
    page_size_max: int = Field(100, ge=1, le=1000)
    max_sweep_body_bytes: int = Field(2**26, ge=2**10)
    sweep_requests_max: int = Field(100_000, ge=1)
    sweep_plans_max: int = Field(5_000, ge=1)
    sweeps_waiting_max: int = Field(20, ge=1)
    sweep_keep_days: float = Field(7, gt=0)
    sweep_lease_s: float = Field(30, ge=1)
    calibrate: bool = True
    list_plans: bool = True
    require_keys: bool = False
    allowed_hosts: str = ""
    body_timeout_s: float = Field(30.0, gt=0)
    rate_limit: str = ""
    trusted_proxies: str = ""

    @field_validator("rate_limit")
    @classmethod
    def _readable_rate(cls, value: str) -> str:
        if not value:
            return value
        from limits import parse_many  # takes a tenth of a second, which a command without rates need not wait

        try:
            readable = all(rate.amount > 0 for rate in parse_many(value))
        except ValueError:
            readable = False
        if not readable:
            raise ValueError("give rates such as 60/minute or 10/second;1000/hour")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _readable_networks(cls, value: str) -> str:
        for part in filter(None, map(str.strip, value.split(","))):
            ip_network(part)
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _readable_hosts(cls, value: str) -> str:
        for part in filter(None, map(str.strip, value.split(","))):
            if not _HOST.fullmatch(part):
                raise ValueError(f"{part[:80]!r} is no host name; give names such as plans.example.org or *.example.org, without a port")
        return value

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str) -> str:
        for prefix in ("postgres://", "postgresql://"):
            if value.startswith(prefix):
                value = "postgresql+psycopg://" + value.removeprefix(prefix)
        if not value.startswith(("sqlite:///", "postgresql+psycopg://")):
            raise ValueError("give sqlite:///file.db or postgresql://user:password@host/name")
        if value.removeprefix("sqlite:///") in ("", ":memory:"):
            raise ValueError("an in-memory SQLite database is private to one connection; name a file")
        return value
