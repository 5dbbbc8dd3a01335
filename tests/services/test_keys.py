"""API keys: told once, kept as a hash, rotated with a grace, ended; and remembered while the database is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.domain.errors import ConflictError, InvalidRequestError, NotFoundError, UnavailableError
from app.services import key_check
from app.services.key_check import KeyCheck, UnauthorizedError
from app.services.keys import IssuedKey, Keys, belongs
from app.store.session import Database


class Time:
    """A clock that moves when it is told to, for both kinds of time."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now(self) -> datetime:
        return datetime(2026, 5, 1, 12, tzinfo=UTC) + timedelta(seconds=self.passed_s)

    def clock(self) -> float:
        return self.passed_s


class Flaky(Database):
    """A database that can be away, and counts how often it is asked."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.is_away, self.asked = False, 0

    @contextmanager
    def session(self, *, write: bool = False) -> Iterator[Session]:
        self.asked += not write
        if self.is_away:
            raise UnavailableError("away")
        with super().session(write=write) as session:
            yield session


@pytest.fixture
def time_() -> Time:
    return Time()


@pytest.fixture
def flaky(database_url: str) -> Iterator[Flaky]:
    opened = Flaky(database_url)
    yield opened
    opened.close()


@pytest.fixture
def keys(flaky: Flaky, time_: Time) -> Keys:
    return Keys(flaky, now=time_.now)


@pytest.fixture
def check(flaky: Flaky, time_: Time) -> Iterator[KeyCheck]:
    opened = KeyCheck(flaky, clock=time_.clock, now=time_.now)
    yield opened
    opened.close()


def ask(check: KeyCheck, text_: str) -> str:
    """As the door does: from memory, or else of the database."""
    return (check.remembered(text_) or check.ask(text_)).id


def test_the_secret_is_told_once_and_never_kept(keys: Keys, flaky: Flaky) -> None:
    """A key is found by its id; nothing in the database opens anything."""
    made = keys.create("  ci ", ["plan", "read"], life=timedelta(days=90))
    (found,) = keys.list()
    assert found == made.key
    assert (found.name, found.scopes, found.owner) == ("ci", frozenset({"plan", "read"}), found.id)
    assert found.expires_at == found.created_at + timedelta(days=90)
    assert made.text.startswith(f"shp_{found.id}_")
    assert belongs(made.text, found)
    with flaky.session() as session:
        row = "|".join(map(str, session.execute(text("SELECT * FROM api_keys")).one()))
    assert made.text.split("_", 2)[2] not in row
    assert not any(belongs(str(getattr(found, field.name)), found) for field in fields(found))


@pytest.mark.parametrize(
    ("name", "scopes", "life", "message"),
    [
        ("", ["plan"], None, "name"),
        ("x" * 201, ["plan"], None, "name"),
        ("a\nb", ["plan"], None, "printable"),
        ("ci", [], None, "opens nothing"),
        ("ci", ["plan", "root"], None, "no scope root; use plan, read, write, admin"),
        ("ci", ["plan"], timedelta(), "life"),
        ("ci", ["plan"], timedelta(days=999_999), "life"),
    ],
)
def test_keys_that_cannot_be_made(keys: Keys, name: str, scopes: list[str], life: timedelta | None, message: str) -> None:
    """The rule is said, and nothing is kept."""
    with pytest.raises(InvalidRequestError, match=message):
        keys.create(name, scopes, life=life)
    assert keys.list() == ()


def test_rotation_keeps_the_client(keys: Keys, check: KeyCheck, time_: Time) -> None:
    """Same owner, name, scopes and length of life; the one before goes on for its grace and then ends."""
    first = keys.create("ci", ["plan"], life=timedelta(days=10))
    time_.passed_s = 86_400
    second = keys.rotate(first.key.id, grace=timedelta(hours=24))
    third = keys.rotate(second.key.id, grace=timedelta())
    assert {made.key.owner for made in (first, second, third)} == {first.key.id}
    assert {(made.key.name, made.key.scopes) for made in (first, second, third)} == {("ci", frozenset({"plan"}))}
    assert third.key.expires_at == time_.now() + timedelta(days=10)
    assert [ask(check, made.text) for made in (first, third)] == [first.key.id, third.key.id]
    with pytest.raises(UnauthorizedError, match="expired at 2026-05-02 12:00 UTC"):
        ask(check, second.text)
    time_.passed_s += 86_400
    with pytest.raises(UnauthorizedError, match="expired"):
        ask(check, first.text)
    with pytest.raises(ConflictError, match="expired"):
        keys.rotate(first.key.id, grace=timedelta())
    with pytest.raises(NotFoundError, match="no key 'none'"):
        keys.rotate("none", grace=timedelta())


def test_a_grace_never_lengthens_a_life(keys: Keys) -> None:
    """A key that ends sooner than its grace ends when it would have."""
    first = keys.create("ci", ["plan"], life=timedelta(hours=1))
    keys.rotate(first.key.id, grace=timedelta(days=7))
    assert keys.list()[0].expires_at == first.key.expires_at


def test_a_revoked_key_ends_within_a_minute(keys: Keys, check: KeyCheck, time_: Time) -> None:
    """At once where it was not seen lately; revoking twice keeps the first time."""
    made = keys.create("ci", ["plan"])
    assert ask(check, made.text) == made.key.id
    keys.revoke(made.key.id)
    time_.passed_s = key_check.FRESH_S - 1
    assert ask(check, made.text) == made.key.id
    time_.passed_s = key_check.FRESH_S
    with pytest.raises(UnauthorizedError, match="revoked at 2026-05-01 12:00 UTC"):
        ask(check, made.text)
    keys.revoke(made.key.id)
    assert keys.list()[0].revoked_at == datetime(2026, 5, 1, 12, tzinfo=UTC)
    with pytest.raises(NotFoundError):
        keys.revoke("nul\0")


def test_a_key_that_is_known_asks_nothing(keys: Keys, check: KeyCheck, flaky: Flaky, time_: Time) -> None:
    """For a minute; a wrong secret for it neither, and it does not put out the right one."""
    made = keys.create("ci", ["plan"])
    ask(check, made.text)
    before = flaky.asked
    for _ in range(5):
        assert ask(check, made.text) == made.key.id
        with pytest.raises(UnauthorizedError, match="not known"):
            ask(check, made.text[:-1] + ("A" if made.text[-1] != "A" else "B"))
    assert flaky.asked == before
    time_.passed_s = 61
    ask(check, made.text)
    assert flaky.asked == before + 1


@pytest.mark.parametrize("tried", ["", "shp_", "shp_0123456789ab_short", "Bearer", "\ud800", "shp_0123456789ab_" + "é" * 43, "x" * 10_000])
def test_what_is_no_key_asks_nothing(check: KeyCheck, flaky: Flaky, tried: str) -> None:
    """It is refused by its looks, also while the database is away."""
    flaky.is_away = True
    with pytest.raises(UnauthorizedError):
        ask(check, tried)
    assert flaky.asked == 0


def test_planning_goes_on_while_the_database_is_away(keys: Keys, check: KeyCheck, flaky: Flaky, time_: Time) -> None:
    """Keys seen lately work for a quarter of an hour; others cannot be checked, which is not the same as wrong."""
    seen, other = keys.create("seen", ["plan"], life=timedelta(minutes=10)), keys.create("other", ["plan"])
    lasting = keys.create("lasting", ["plan"])
    for made in (seen, lasting):
        ask(check, made.text)
    flaky.is_away = True
    time_.passed_s = 300
    assert ask(check, seen.text) == seen.key.id
    with pytest.raises(UnavailableError, match="cannot be checked"):
        ask(check, other.text)
    with pytest.raises(UnauthorizedError, match="not known"):
        ask(check, seen.text[:-43] + "A" * 43)
    time_.passed_s = 601
    with pytest.raises(UnauthorizedError, match="expired"):
        ask(check, seen.text)
    time_.passed_s = key_check.USABLE_S - 1
    assert ask(check, lasting.text) == lasting.key.id
    time_.passed_s = key_check.USABLE_S
    with pytest.raises(UnavailableError):
        ask(check, lasting.text)
    flaky.is_away = False
    time_.passed_s += 2
    assert [ask(check, made.text) for made in (lasting, other)] == [lasting.key.id, other.key.id]


def test_a_database_that_is_away_is_asked_once_a_second(keys: Keys, check: KeyCheck, flaky: Flaky, time_: Time) -> None:
    """However many keys come in meanwhile, and they do not put off the next time."""
    made = [keys.create(f"k{n}", ["plan"]) for n in range(5)]
    flaky.is_away, flaky.asked = True, 0
    for passed in (0.0, 0.4, 0.8, 1.1):
        time_.passed_s = passed
        for key in made:
            with pytest.raises(UnavailableError):
                ask(check, key.text)
    assert flaky.asked == 2


def test_memory_is_bounded(keys: Keys, check: KeyCheck, flaky: Flaky, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest unused key is forgotten first, and texts that were tried are not remembered at all."""
    monkeypatch.setattr(key_check, "_MAX_REMEMBERED", 2)
    made = [keys.create(f"k{n}", ["plan"]) for n in range(3)]
    ask(check, made[0].text)
    ask(check, made[1].text)
    ask(check, made[0].text)
    ask(check, made[2].text)
    for n in range(5):
        with pytest.raises(UnauthorizedError):
            ask(check, f"shp_{n:012x}_{'A' * 43}")
    assert [check.remembered(key.text) is not None for key in made] == [True, False, True]


def last_used(keys: Keys, made: IssuedKey) -> datetime | None:
    return next(key.last_used_at for key in keys.list() if key.id == made.key.id)


def test_the_last_use_is_noted_once_an_hour(keys: Keys, check: KeyCheck, time_: Time) -> None:
    """Beside the request, not in it."""
    made = keys.create("ci", ["plan"])
    noted = []
    for passed in (0, 1800, 3601):
        time_.passed_s = passed
        ask(check, made.text)
        check._notes.submit(lambda: None).result(5)
        noted.append(last_used(keys, made))
    start = datetime(2026, 5, 1, 12, tzinfo=UTC)
    assert noted == [start, start, start + timedelta(seconds=3601)]


def test_a_use_that_cannot_be_noted_stops_nobody(keys: Keys, check: KeyCheck, flaky: Flaky, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database can be read and not written, or locked for a long time."""
    made = keys.create("ci", ["plan"])
    release = threading.Event()
    plain = flaky.session

    def only_reads(*, write: bool = False) -> object:
        if write:
            release.wait(10)
            raise UnavailableError("locked")
        return plain(write=write)

    monkeypatch.setattr(flaky, "session", only_reads)
    started = time.monotonic()
    assert ask(check, made.text) == made.key.id
    assert time.monotonic() - started < 2
    release.set()
    check._notes.submit(lambda: None).result(5)
    monkeypatch.undo()
    assert last_used(keys, made) is None
