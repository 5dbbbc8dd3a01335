"""Storage on both databases: documents come back as they were, pages are stable, deletion needs the token."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

from app.domain.errors import InvalidRequestError, NotFoundError, UnavailableError
from app.store.cursor import Cursor
from app.store.repository import IdempotencyRecord, NewPlan, PlanFilter, PlanRepository
from app.store.session import Database, DatabaseOptions

NOW = datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)


def plan(number: int = 0, **changes: object) -> NewPlan:
    """A plan whose number decides its id and its age."""
    fields = {
        "id": f"plan-{number:04}",
        "created_at": NOW + timedelta(seconds=number),
        "name": f"run {number}",
        "note": "",
        "engine_version": "1.2.3",
        "model_name": "llama-3.1-8b",
        "gpu_name": "h100-sxm-80gb",
        "verdict": "fits",
        "request": {"model": {"preset": "llama-3.1-8b"}},
        "answer": {"verdict": "fits"},
        "edit_token_hash": "a" * 64,
    }
    return NewPlan(**(fields | changes))  # type: ignore[arg-type]


def add(database: Database, *plans: NewPlan) -> None:
    with database.session(write=True) as session:
        for item in plans:
            PlanRepository(session).add(item)


def test_a_plan_comes_back_as_it_was_saved(database: Database) -> None:
    """Order of keys, kinds of numbers, every script and even U+0000 inside a document survive both databases."""
    request = {"zeta": 7.5e9, "alpha": 1, "text": "模型 \u0000 \U0001f600", "deep": [{"b": None, "a": [True, 1.0]}]}
    saved = plan(request=request, answer={"verdict": "tight", "files": {"z": "1", "a": "2"}}, verdict="tight")
    add(database, saved)
    with database.session() as session:
        found = PlanRepository(session).get(saved.id)
    assert found.request == request
    assert list(found.request) == ["zeta", "alpha", "text", "deep"]
    assert type(found.request["zeta"]) is float
    assert list(found.answer["files"]) == ["z", "a"]
    assert found.created_at == saved.created_at
    assert found.created_at.tzinfo is not None


def test_what_jsonb_would_change(postgres_url: str) -> None:
    """The reasons of ADR 9 still hold: order, the way a number is written, U+0000; and a cast asks inside a document."""
    opened = Database(postgres_url)

    def as_jsonb(document: str) -> str:
        with opened.session() as session:
            return str(session.execute(text("SELECT CAST(:given AS jsonb)::text"), {"given": document}).scalar_one())

    assert as_jsonb('{"zeta": 7.5e9, "a": 1}') == '{"a": 1, "zeta": 7500000000}'
    with pytest.raises(DBAPIError, match="unsupported Unicode escape sequence"):
        as_jsonb('{"a": "\\u0000"}')
    with opened.session(write=True) as session:
        PlanRepository(session).add(plan(answer={"recommended": {"settings": {"strategy": "zero2"}}}))
        query = "SELECT answer::jsonb #>> '{recommended,settings,strategy}', count(*) FROM plans GROUP BY 1"
        assert session.execute(text(query)).all() == [("zero2", 1)]
        session.rollback()
    opened.close()


def test_times_are_utc_wherever_they_come_from(database: Database) -> None:
    """A moment given in another zone is the same moment in UTC when read."""
    add(database, plan(created_at=NOW.astimezone(timezone(timedelta(hours=8)))))
    with database.session() as session:
        found = PlanRepository(session).get("plan-0000")
    assert found.created_at == NOW
    assert found.created_at.utcoffset() == timedelta(0)


@pytest.mark.parametrize("plan_id", ["nope", "no\0pe", "", "x" * 500, "模型"])
def test_an_unknown_plan_is_not_found(database: Database, plan_id: str) -> None:
    """Reading and deleting what is not there say so, whatever stands in the address."""
    with database.session() as session, pytest.raises(NotFoundError, match="there is no saved plan"):
        PlanRepository(session).get(plan_id)
    with pytest.raises(NotFoundError), database.session(write=True) as session:
        PlanRepository(session).delete(plan_id, "a" * 64)


def test_pages_neither_repeat_nor_hide(database: Database) -> None:
    """Plans saved or deleted while someone pages do not shift what the next page starts with."""
    same_moment = [plan(n, created_at=NOW) for n in range(5)]
    add(database, *same_moment, *(plan(n) for n in range(5, 10)))
    seen: list[str] = []
    after = None
    while True:
        with database.session() as session:
            page = PlanRepository(session).list(PlanFilter(), after=after, limit=3)
        if not page:
            break
        seen += [item.id for item in page]
        after = Cursor.decode(Cursor(page[-1].created_at, page[-1].id).encode())
        add(database, plan(100 + len(seen)))
    assert seen == [f"plan-{n:04}" for n in range(9, -1, -1)]


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (PlanFilter(), {0, 1, 2}),
        (PlanFilter(text="LLAMA"), {0, 2}),
        (PlanFilter(text="b200 run"), {2}),
        (PlanFilter(text="größe"), {1}),
        (PlanFilter(text="50%"), {1}),
        (PlanFilter(text="5_%"), set()),
        (PlanFilter(text="\\"), set()),
        (PlanFilter(text="  "), {0, 1, 2}),
        (PlanFilter(text="\0"), {0, 1, 2}),
        (PlanFilter(name="run"), {0, 2}),
        (PlanFilter(name="llama"), set()),
        (PlanFilter(name="sxm"), set()),
        (PlanFilter(model="Qwen3"), {1}),
        (PlanFilter(model="run"), set()),
        (PlanFilter(model="sxm"), set()),
        (PlanFilter(gpu="SXM b200"), {2}),
        (PlanFilter(gpu="llama"), set()),
        (PlanFilter(gpu="sxm", model="llama", name="0"), {0}),
    ],
)
def test_search_is_literal_and_ignores_case(database: Database, wanted: PlanFilter, ids: set[int]) -> None:
    """Each word must occur where it is looked for; LIKE's own signs are ordinary characters."""
    add(
        database,
        plan(0),
        plan(1, name="GRÖSSE\n50%  test", model_name="qwen3-8b", gpu_name="rtx-4090"),
        plan(2, gpu_name="b200-sxm"),
    )
    with database.session() as session:
        found = PlanRepository(session).list(wanted, after=None, limit=10)
    assert {int(item.id.removeprefix("plan-")) for item in found} == ids


def test_a_transaction_that_fails_leaves_nothing(database: Database) -> None:
    """What was added before an error is not there afterwards."""
    with pytest.raises(RuntimeError), database.session(write=True) as session:
        PlanRepository(session).add(plan())
        raise RuntimeError
    with database.session() as session:
        assert PlanRepository(session).list(PlanFilter(), after=None, limit=10) == ()


def test_deleting_a_plan_frees_its_key(database: Database) -> None:
    """The idempotency row goes with the plan, on SQLite too, where foreign keys must be switched on."""
    record = IdempotencyRecord(key="k", request_hash="h" * 64, plan_id="plan-0000")
    with database.session(write=True) as session:
        repository = PlanRepository(session)
        repository.add(plan())
        assert repository.claim(record, NOW)
        assert not repository.claim(record, NOW)
    with database.session(write=True) as session:
        assert not PlanRepository(session).delete("plan-0000", "b" * 64)
        assert PlanRepository(session).delete("plan-0000", "a" * 64)
    with database.session() as session:
        assert PlanRepository(session).claimed("k") is None


def test_a_list_never_reads_the_documents(database: Database) -> None:
    """A page of big plans costs no more than one of small ones."""
    statements: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    add(database, plan())
    with database.session() as session:
        assert len(PlanRepository(session).list(PlanFilter(), after=None, limit=1)) == 1
    (query,) = [statement for statement in statements if "ORDER BY" in statement]
    assert "plans.name" in query
    assert "plans.answer" not in query
    assert "plans.request" not in query


def test_a_locked_database_is_said_to_be_unavailable(database_url: str) -> None:
    """A writer that cannot get its turn in time gives up with a 503 rather than a driver's exception."""
    impatient = Database(database_url, DatabaseOptions(statement_timeout_s=1))
    holder = Database(database_url)
    postgres = holder.engine.dialect.name == "postgresql"
    with holder.session(write=True) as session:
        PlanRepository(session).add(plan())
        if postgres:
            session.execute(text("LOCK TABLE plans IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(UnavailableError), impatient.session(write=True) as blocked:
            PlanRepository(blocked).add(plan(1))
    impatient.ping()
    impatient.close()
    holder.close()


@pytest.mark.parametrize("text_", ["", "%%%", "bm9wZQ", "MjAyNi0wMS0wMVQwMDowMDowMHx4", "é"])
def test_a_foreign_cursor_is_refused(text_: str) -> None:
    """Only what a list gave is a cursor; one without a time zone is not."""
    with pytest.raises(InvalidRequestError, match="not a cursor"):
        Cursor.decode(text_)
