"""Bring a database to the schema this version needs; safe to run from several processes at once."""

from __future__ import annotations

import logging
import threading
from functools import cache
from pathlib import Path
from typing import Literal

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, make_url, text

from app.resources import resource_dir
from app.store.outages import NotMigratedError, reported_outages
from app.store.session import DatabaseOptions, for_writing, make_engine
from app.store.tables import Base

Schema = Literal["current", "ahead", "behind", "missing"]
"""How a database's schema stands to this version: the same, of a newer one, of an older one, or its tables are not there."""

ADVISORY_LOCK = 0x5348415244
"""Key of the PostgreSQL lock under which migrations run: "SHARD" in ASCII."""

_LOCK_WAIT_S = 60
_LOCK_TIMEOUT_S = 5
_STATEMENT_TIMEOUT_S = 60
_IN_THIS_PROCESS = threading.Lock()
"""Alembic keeps the migration it runs in a global."""

log = logging.getLogger(__name__)


def upgrade(database_url: str, revision: str = "head") -> None:
    """Apply every migration up to ``revision`` in one transaction.

    A database that a newer version migrated is left as it is: migrations stay usable by the version before them, so
    that a replica of the older version can restart while the others are being replaced.

    Raises:
        UnavailableError: the database cannot be reached, or another process holds it for longer than a minute.
    """
    with reported_outages():
        if revision == "head" and (at := current(database_url)) is not None and (at == head() or _is_newer(at)):
            return
        _run(database_url, revision, downwards=False)


def require(database_url: str) -> None:
    """Look whether somebody else has applied the migrations this version needs; change nothing.

    Raises:
        NotMigratedError: not yet.
        UnavailableError: the database cannot be reached.
    """
    schema, at = standing(database_url)
    if schema == "behind":
        raise NotMigratedError(f"it is at {at or 'no revision'}, and this version needs {head()}; `shardplan migrate` brings it there")


def standing(database_url: str) -> tuple[Schema, str | None]:
    """How a database's schema stands to this version, and its revision; raises ``UnavailableError``.

    A SQLite file that is not there is not made by looking.
    """
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite" and (file := Path(url.database or "")).parent.is_dir() and not file.exists():
        return "behind", None
    engine = make_engine(database_url)
    try:
        with reported_outages(), engine.connect() as connection:
            return schema_of(connection), MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()


def downgrade(database_url: str, revision: str) -> None:
    """Undo migrations down to ``revision``; ``base`` empties the database."""
    with reported_outages():
        _run(database_url, revision, downwards=True)


def current(database_url: str) -> str | None:
    """Revision the database is at; None where nothing was migrated yet."""
    engine = make_engine(database_url)
    try:
        with reported_outages(), engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()


def head() -> str | None:
    """Revision this version of the product needs."""
    return ScriptDirectory.from_config(_config()).get_current_head()


def schema_of(connection: Connection) -> Schema:
    """How the schema of the database behind a connection stands to this version."""
    tables = set(inspect(connection).get_table_names())
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision is None or (revision != _newest() and not _is_newer(revision)):
        return "behind"
    if not tables >= set(Base.metadata.tables):
        return "missing"
    return "ahead" if _is_newer(revision) else "current"


@cache
def _known() -> frozenset[str]:
    """Every revision this version can make."""
    return frozenset(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


@cache
def _newest() -> str | None:
    return head()


def _is_newer(revision: str) -> bool:
    """Whether a revision is of a version after this one: nothing else writes revisions, and this one knows all before it."""
    return revision not in _known()


def _run(database_url: str, revision: str, *, downwards: bool) -> None:
    engine = make_engine(database_url, DatabaseOptions(statement_timeout_s=_LOCK_WAIT_S))
    config = _config()
    try:
        with for_writing(engine).begin() as connection:  # on SQLite this is the lock
            if connection.dialect.name == "postgresql":
                _guard(connection)
            at = MigrationContext.configure(connection).get_current_revision()
            if at is not None and _is_newer(at) and not downwards:  # migrated by another process while this one waited
                log.warning("the database is at revision %s of a newer version; it is used as it is", at)
                return
            config.attributes["connection"] = connection
            with _IN_THIS_PROCESS:
                (command.downgrade if downwards else command.upgrade)(config, revision)
    finally:
        engine.dispose()


def _guard(connection: Connection) -> None:
    """One migrator at a time; then short lock waits, so that a migration never queues the service behind it."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
    connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_S}s'"))
    connection.execute(text(f"SET LOCAL statement_timeout = '{_STATEMENT_TIMEOUT_S}s'"))


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(resource_dir("migrations")).replace("%", "%%"))
    return config
