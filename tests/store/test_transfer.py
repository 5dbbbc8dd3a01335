"""Export and import: equal rows on either database, nothing twice, all or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from app.domain.errors import ConflictError, InvalidRequestError
from app.services.saved_plans import SavedPlans
from app.store.measurements import MeasurementRepository, StoredMeasurement
from app.store.migrate import upgrade
from app.store.repository import IdempotencyRecord, PlanRepository
from app.store.session import Database
from app.store.transfer import Imported, export_lines, import_lines
from tests.postgres import PostgresServer
from tests.services.test_saved_plans import ANSWER, REQUEST
from tests.store.test_never_change import contents
from tests.store.test_repository import NOW, add, plan

AWKWARD = {"zeta": 7.5e9, "alpha": 1, "text": "模型 \u0000 \U0001f600\u2028", "deep": [{"b": None, "a": [True, 1.0, -0.0, 1e-320]}]}

RUN = StoredMeasurement(
    id="run-1", plan_id="plan-0001", created_at=NOW, counter=None, peak_bytes=2**40, step_s=0.1, tokens_per_s=None, oom=False,
    note="模型", owner="", engine_version="0.0.9", idempotency_key="k", request_hash="e" * 64, details=AWKWARD, predicted={},
)  # fmt: skip


def fill(database: Database) -> list[str]:
    """Plans with everything that could get lost on the way; the token of the first, its id and key."""
    saved = SavedPlans(database).save(REQUEST, ANSWER, name="GRÖSSE  50%", note="a\nb", idempotency_key="key-1")
    add(database, plan(1, request=AWKWARD, answer=AWKWARD, verdict="tight"), plan(2, name='"; rm -rf ~ #', created_at=NOW))
    with database.session(write=True) as session:
        PlanRepository(session).claim(IdempotencyRecord(key="k'2", request_hash="f" * 64, plan_id="plan-0002"), NOW)
        MeasurementRepository(session).add(RUN)
    return [saved.edit_token or "", saved.id]


def exported(database: Database) -> list[bytes]:
    with database.session() as session:
        return list(export_lines(session))


def imported(database: Database, lines: list[bytes]) -> Imported:
    with database.session(write=True) as session:
        return import_lines(session, lines)


@pytest.fixture
def lines(tmp_path: Path) -> list[bytes]:
    """An export of three plans, two keys and a measurement."""
    url = f"sqlite:///{tmp_path / 'source.db'}"
    upgrade(url)
    database = Database(url)
    fill(database)
    found = exported(database)
    database.close()
    return found


def test_from_sqlite_to_postgresql_and_back(tmp_path: Path, postgres: PostgresServer) -> None:
    """The same export from all three, the same rows at the end, and tokens, keys and search go on working."""
    urls = [f"sqlite:///{tmp_path / 'first.db'}", postgres.database(), f"sqlite:///{tmp_path / 'second.db'}"]
    databases = [Database(url) for url in urls]
    for url in urls:
        upgrade(url)
    token, plan_id = fill(databases[0])
    exports = [exported(databases[0])]
    for database in databases[1:]:
        assert imported(database, exports[-1]) == Imported(
            added={"plans": 3, "idempotency": 2, "measurements": 1}, present={"plans": 0, "idempotency": 0, "measurements": 0}
        )
        exports.append(exported(database))
    assert exports[0] == exports[1] == exports[2]
    assert len(exports[0]) == 8
    assert contents(urls[0]) == contents(urls[2])
    for database in databases[1:]:
        saved = SavedPlans(database)
        assert saved.save(REQUEST, ANSWER, name="GRÖSSE  50%", note="a\nb", idempotency_key="key-1").id == plan_id
        assert orjson.dumps(saved.get("plan-0001").answer) == orjson.dumps(AWKWARD)
        with database.session() as session:
            assert MeasurementRepository(session).of_plan("plan-0001") == (RUN,)
        saved.delete(plan_id, token)
        assert len(saved.list().items) == 2
    for database in databases:
        database.close()
    postgres.drop(urls[1])


def test_importing_twice_changes_nothing(database: Database, lines: list[bytes]) -> None:
    """The second time every row is there already; so it is for the database the export is from."""
    assert imported(database, lines).added == {"plans": 3, "idempotency": 2, "measurements": 1}
    before = contents(database.url)
    again = imported(database, lines)
    assert (again.added, again.present) == (
        {"plans": 0, "idempotency": 0, "measurements": 0},
        {"plans": 3, "idempotency": 2, "measurements": 1},
    )
    assert contents(database.url) == before


def test_an_import_joins_what_is_there(database: Database, lines: list[bytes]) -> None:
    """Other plans stay, and an export of a part adds that part."""
    add(database, plan(9))
    imported(database, lines)
    assert len(contents(database.url)["plans"]) == 4


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        ("plans", {"note": "other"}, "line 2: plans has .* already, with other contents"),
        ("measurements", {"peak_bytes": 1}, "line 7: measurements has .* already, with other contents"),
        ("idempotency", {"request_hash": "0" * 64}, "line 5: idempotency has .* already, with other contents"),
    ],
)
def test_nothing_is_replaced(database: Database, lines: list[bytes], table: str, changes: dict[str, str], message: str) -> None:
    """A row with the same key and other contents is a conflict, and then nothing is imported."""
    imported(database, lines)
    before = contents(database.url)
    with pytest.raises(ConflictError, match=message):
        imported(database, _changed(lines, table, changes))
    assert contents(database.url) == before


def _changed(lines: list[bytes], table: str, changes: dict[str, Any]) -> list[bytes]:
    """The export with other values in the first line of a table."""
    at = next(n for n, line in enumerate(lines) if orjson.loads(line).get("table") == table)
    return [*lines[:at], orjson.dumps(orjson.loads(lines[at]) | changes), *lines[at + 1 :]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verdict": "maybe"}, "line 2: plans does not take this row: .*(verdict|check)"),
        ({"name": "x" * 201}, "line 2: name has 201 characters, more than 200"),
        ({"note": "nul \0"}, "line 2: note is no text"),
        ({"note": None}, "line 2: note is no text"),
        ({"created_at": "2026-05-01T12:00:00"}, "line 2: created_at has no time zone"),
        ({"created_at": 5}, "line 2: created_at is no time"),
        ({"answer": []}, "line 2: answer is no object"),
        ({"colour": "red"}, "line 2: these keys are missing or unknown: colour"),
        ({"table": "users"}, "line 2: there is no table 'users'"),
        ({"table": ["plans"]}, "line 2: there is no table"),
    ],
)
def test_a_wrong_line_is_named_and_stops_it_all(database: Database, lines: list[bytes], changes: dict[str, Any], message: str) -> None:
    """On SQLite too, which would store any length and any text as a time."""
    with pytest.raises(InvalidRequestError, match=message):
        imported(database, _changed(lines, "plans", changes))
    assert contents(database.url) == {"plans": [], "idempotency": []}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counter": "felt"}, "line 7: measurements does not take this row"),
        ({"peak_bytes": 1.5}, "line 7: peak_bytes is no whole number"),
        ({"peak_bytes": True}, "line 7: peak_bytes is no whole number"),
        ({"step_s": "1"}, "line 7: step_s is no number"),
        ({"oom": 1}, "line 7: oom is neither true nor false"),
        ({"oom": None}, "line 7: oom is neither true nor false"),
        ({"plan_id": "none"}, "line 7: measurements does not take this row"),
    ],
)
def test_a_wrong_measurement_stops_it_all(database: Database, lines: list[bytes], changes: dict[str, Any], message: str) -> None:
    """Its numbers are numbers, and its plan is there."""
    with pytest.raises(InvalidRequestError, match=message):
        imported(database, _changed(lines, "measurements", changes))
    assert contents(database.url) == {"plans": [], "idempotency": []}


def test_an_export_of_the_version_before_is_read(database: Database, lines: list[bytes]) -> None:
    """It has no measurements, and its end does not count them; nor does the end of an export of today that has none."""
    before = [*lines[:-2], b'{"end":{"plans":3,"idempotency":2}}']
    assert imported(database, before).added == {"plans": 3, "idempotency": 2, "measurements": 0}
    assert orjson.loads(exported(database)[-1]) == orjson.loads(before[-1])


def test_a_key_without_its_plan(database: Database, lines: list[bytes]) -> None:
    """A key of a plan that is not in the file is refused."""
    with pytest.raises(InvalidRequestError, match="line 2: idempotency does not take this row"):
        imported(database, [lines[0], *lines[4:]])
    assert contents(database.url) == {"plans": [], "idempotency": []}


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (lambda lines: [], "line 1: this is not JSON"),
        (lambda lines: lines[1:], "line 1: this is not an export"),
        (lambda lines: [b'{"format":"shardplan-export","version":2}', *lines[1:]], "version 2; this program reads 1"),
        (lambda lines: lines[:-1], "cut short"),
        (lambda lines: [*lines[:-1], lines[-1][:10]], "line 8: this is not JSON"),
        (lambda lines: [*lines[:4], *lines[5:]], "line 7: the end counts"),
        (lambda lines: [*lines[:-1], b'{"end":[]}'], "line 8: the end counts"),
        (lambda lines: [*lines, lines[1]], "line 9: there is more after the end"),
        (lambda lines: [lines[0], b"[]", *lines[1:]], "line 2: this is not an object"),
    ],
)
def test_a_file_that_is_not_whole(database: Database, lines: list[bytes], cut: Any, message: str) -> None:
    """What an interrupted copy leaves is never half a restore."""
    with pytest.raises(InvalidRequestError, match=message):
        imported(database, cut(lines))
    assert contents(database.url) == {"plans": [], "idempotency": []}


def test_an_export_is_of_one_moment(database: Database) -> None:
    """A plan and key saved while it is being written are in it together or not at all; here, not."""
    add(database, plan(0))
    with database.session() as session:
        stream = export_lines(session)
        found = [next(stream), next(stream)]
        SavedPlans(Database(database.url)).save(REQUEST, ANSWER, idempotency_key="late")
        found += list(stream)
    assert orjson.loads(found[-1]) == {"end": {"plans": 1, "idempotency": 0}}
