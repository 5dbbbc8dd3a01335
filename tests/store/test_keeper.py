"""The thread that migrates: it tries again while the database is away, wakes when asked, and ends when told."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest

from app.domain.errors import UnavailableError
from app.store.keeper import SchemaKeeper
from app.store.outages import NotMigratedError


class Migrations:
    """Stands for ``upgrade``: fails with each of ``failures`` in turn, then works."""

    def __init__(self, *failures: Exception) -> None:
        self.failures, self.calls = list(failures), 0

    def __call__(self, url: str) -> None:
        assert url == "the address"
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)

    def keeper(self) -> SchemaKeeper:
        return SchemaKeeper("the address", migrate=self, retry_s=0.01, failed_retry_s=0.02)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "schema-keeper"]


def test_it_tries_until_it_succeeds_and_then_rests(caplog: pytest.LogCaptureFixture) -> None:
    """An outage is logged once, a failure each time; after success nothing happens until somebody wakes it."""
    away, broken = UnavailableError("away"), ValueError("this migration is wrong")
    migrations = Migrations(away, away, away, broken, away)
    keeper = migrations.keeper()
    with caplog.at_level(logging.INFO):
        keeper.start(wait_s=5)
        until(lambda: "the database is migrated" in caplog.messages)
    assert migrations.calls == 6
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "INFO"]
    time.sleep(0.1)
    assert migrations.calls == 6
    keeper.wake()
    until(lambda: migrations.calls == 7)
    keeper.close()
    assert keepers() == []


def test_what_is_only_waited_for_is_logged_without_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    """Migrations of others are no failure; one of a driver comes with its reason."""
    absent = UnavailableError("away")
    absent.__cause__ = OSError("no route to host")
    for error, traced in ((NotMigratedError("it is at no revision"), False), (absent, True)):
        migrations = Migrations(error)
        keeper = migrations.keeper()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            keeper.start(wait_s=5)
        (told,) = caplog.records
        assert told.getMessage() == f"the database is not migrated yet: {error.detail}"
        assert bool(told.exc_info) is traced
        keeper.close()


def test_the_first_try_is_over_when_start_returns() -> None:
    """A service with its database at hand is migrated before it answers anything."""
    migrations = Migrations()
    keeper = migrations.keeper()
    keeper.start(wait_s=5)
    assert migrations.calls == 1
    keeper.close()


def test_start_waits_no_longer_than_it_is_told() -> None:
    """A database that hangs does not keep the service from starting, nor from ending."""
    release = threading.Event()
    keeper = SchemaKeeper("the address", migrate=lambda _: release.wait(5) and None)
    started = time.monotonic()
    keeper.start(wait_s=0.05)
    assert time.monotonic() - started < 2
    release.set()
    keeper.close()
    assert keepers() == []


def test_it_ends_while_it_waits_for_its_next_try() -> None:
    """Shutdown is not put off by the pause."""
    keeper = SchemaKeeper("the address", migrate=Migrations(UnavailableError("away")), retry_s=60)
    keeper.start(wait_s=5)
    started = time.monotonic()
    keeper.close()
    assert time.monotonic() - started < 2
    assert keepers() == []
