"""Bring a database to the schema this version needs; safe to run from several processes at once."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from app.resources import resource_dir
from app.store.session import DatabaseOptions, for_writing, make_engine, reported_outages

ADVISORY_LOCK = 0x5348415244
"""Key of the PostgreSQL lock under which migrations run: "SHARD" in ASCII."""

_LOCK_WAIT_S = 60
_LOCK_TIMEOUT_S = 5
_STATEMENT_TIMEOUT_S = 60


def upgrade(database_url: str, revision: str = "head") -> None:
    """Apply every migration up to ``revision`` in one transaction.

    Raises:
        UnavailableError: the database cannot be reached, or another process holds it for longer than a minute.
    """
    with reported_outages():
        if revision == "head" and current(database_url) == head():
            return
        _run(database_url, revision, downwards=False)


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


def _run(database_url: str, revision: str, *, downwards: bool) -> None:
    engine = make_engine(database_url, DatabaseOptions(statement_timeout_s=_LOCK_WAIT_S))
    config = _config()
    try:
        with for_writing(engine).begin() as connection:  # on SQLite this is the lock
            if connection.dialect.name == "postgresql":
                _guard(connection)
            config.attributes["connection"] = connection
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
