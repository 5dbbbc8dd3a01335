"""Sweeps: what they are asked with, rows that are those of single calls, CSV, and work that is done once."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from app.domain.errors import InvalidRequestError, UnavailableError
from app.services.plan import planned
from app.services.request import PlanRequest
from app.services.sweeps.grid import combinations
from app.services.sweeps.kept import SweepOptions, Sweeps, TooManySweepsError
from app.services.sweeps.reading import MAX_SHOWN, SweepLimits, WantedSweep, WrongRequestsError, read_document, read_lines
from app.services.sweeps.rows import CHUNK, PLANS_CHUNK, RowMaker
from app.services.sweeps.table import COLUMNS, header, table
from app.services.sweeps.work import ChunkWorker, LocalQueue
from app.store.session import Database
from app.store.sweeps import ChunkKey
from bench.http import pinned_requests
from tests.faults.service import BODY, until

LIMITS = SweepLimits()
H100 = {"gpu": "h100-sxm-80gb", "gpus_per_node": 8}
# Chosen: every framework, offload, named releases, an adapter, a sequence axis, unequal pools, and one that does not fit.
VARIED: list[dict[str, Any]] = [
    BODY,
    {"model": {"preset": "llama-3.1-8b"}, "training": {"seq_len": 8192, "global_batch": 64}, "cluster": {"pools": [H100]}},
    {"model": {"preset": "llama-3.1-70b"}, "training": {"seq_len": 4096}, "cluster": {"pools": [H100 | {"nodes": 4}]}},
    {"model": {"preset": "llama-3.1-70b"}, "training": {"seq_len": 4096}, "cluster": {"pools": [H100 | {"gpus_per_node": 2}]},
     "constraints": {"framework": "ddp"}},
    {"model": {"params": 7e9}, "training": {"seq_len": 2048, "activation_checkpointing": "full"}, "cluster": {"pools": [H100]},
     "constraints": {"framework": "deepspeed", "strategy": "zero3", "offload_optimizer": "cpu"}, "deepspeed_version": "0.17.1"},
    {"model": {"preset": "llama-3.1-8b"}, "training": {"seq_len": 2048, "adapter": {"kind": "qlora"}}, "cluster": {"pools": [H100]},
     "constraints": {"framework": "fsdp2"}},
    {"model": {"preset": "llama-3.1-8b"}, "training": {"seq_len": 131072}, "cluster": {"pools": [H100, {"instance": "p5.48xlarge"}]},
     "constraints": {"sequence_parallel": 8}},
]  # fmt: skip
MAY_BE_EMPTY = {"capacity_bytes", "active_params", "usd_per_hour", "usd_per_billion_tokens"}
SENSELESS = BODY | {"constraints": {"framework": "ddp", "strategy": "zero3"}}


def wanted_of(*requests: Any, detail: str = "figures") -> WantedSweep:
    """A sweep of these requests."""
    return read_document({"requests": list(requests), "detail": detail}, LIMITS)


def rows_of(wanted: WantedSweep) -> list[dict[str, Any]]:
    """What comes of it, in process."""
    rows = RowMaker().rows(wanted.requests, 0, wanted.detail, wanted.axes)
    assert rows is not None
    return [orjson.loads(line) for line in rows.lines]


def single(request: dict[str, Any]) -> Any:
    """What ``POST /plan`` answers."""
    return orjson.loads(orjson.dumps(planned(PlanRequest.model_validate(request)).document()))


def without_clock(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan without how long it took."""
    return plan | {"search": {key: value for key, value in plan["search"].items() if key != "elapsed_ms"}}


def is_part(part: Any, whole: Any, *, where: str = "") -> Iterator[str]:
    """Where a row differs from the plan it is a part of."""
    if isinstance(part, dict) and isinstance(whole, dict):
        for key, value in part.items():
            yield from is_part(value, whole.get(key, f"no {key}"), where=f"{where}.{key}")
    elif part != whole:
        yield f"{where}: {part!r} is not {whole!r}"


def test_figures_are_those_of_single_calls() -> None:
    """Every figure of a row stands in the plan of that request, under the same name, to the last bit; so do the warnings' codes."""
    requests = [*VARIED, *pinned_requests()[2::7]]
    rows = rows_of(wanted_of(*requests))
    verdicts = set()
    for number, (row, request) in enumerate(zip(rows, requests, strict=True)):
        plan = single(request)
        assert row.pop("index") == number
        assert [w["code"] for w in row.pop("warnings")] == [w["code"] for w in plan["warnings"]]
        assert list(is_part(row, plan)) == []
        assert row["recommended"]["memory"]["gpu"]["device_bytes"] == plan["recommended"]["memory"]["gpu"]["device_bytes"]
        verdicts.add(row["verdict"])
    assert verdicts == {"fits", "tight", "does_not_fit"}


def test_whole_plans_are_those_of_single_calls() -> None:
    """With detail plan a row is the document that ``POST /plan`` answers with, but for the time it took."""
    rows = rows_of(wanted_of(*VARIED[:4], detail="plan"))
    for row, request in zip(rows, VARIED, strict=False):
        del row["index"]
        assert without_clock(row) == without_clock(single(request))


def test_a_request_that_makes_no_sense_is_a_row() -> None:
    """With what a single call would say; those around it are planned."""
    first, second, third = rows_of(wanted_of(BODY, SENSELESS, BODY))
    with pytest.raises(InvalidRequestError) as refused:
        planned(PlanRequest.model_validate(SENSELESS))
    assert second["index"] == 1
    assert second["error"]["detail"] == refused.value.detail
    assert second["error"]["code"] == "invalid_request"
    assert second["error"]["errors"][0]["loc"][0] == "constraints"
    assert first | {"index": 2} == third


def test_the_planner_may_break_on_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours is a row too, and holds up nobody."""
    monkeypatch.setattr("app.services.sweeps.rows.brief_plan", lambda *_: 1 / 0)
    (row,) = rows_of(wanted_of(BODY))
    assert row["error"]["code"] == "internal"
    assert "division" not in str(row)


def test_a_hub_that_does_not_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some seconds in all, for the rows of a chunk together; then they say so."""

    def away(*_: object) -> None:
        raise UnavailableError("the model hub does not answer")

    monkeypatch.setattr("app.services.sweeps.rows.brief_plan", away)
    slept: list[float] = []
    rows = RowMaker(sleep=slept.append).rows([orjson.dumps(BODY)] * 3, 0, "figures", ())
    assert rows is not None and rows.counts == (0, 0, 0, 3)
    assert [orjson.loads(line)["error"]["code"] for line in rows.lines] == ["unavailable"] * 3
    assert 10 < sum(slept) < 30


def test_a_grid_is_every_combination_in_order() -> None:
    """The last axis varies fastest, lists are entered by number, and what is not there is made."""
    base = {"model": {"preset": "llama-3.1-8b"}, "training": {}, "cluster": {"pools": [H100]}}
    axes = {"training.seq_len": [2048, 4096], "cluster.pools.0.nodes": [1, 2], "constraints.framework": ["fsdp2"]}
    wanted = read_document({"grid": {"base": base, "axes": axes}}, LIMITS)
    made = [orjson.loads(request) for request in wanted.requests]
    assert [(r["training"]["seq_len"], r["cluster"]["pools"][0]["nodes"]) for r in made] == [(2048, 1), (2048, 2), (4096, 1), (4096, 2)]
    assert {r["constraints"]["framework"] for r in made} == {"fsdp2"}
    assert base == {"model": {"preset": "llama-3.1-8b"}, "training": {}, "cluster": {"pools": [H100]}}
    row = rows_of(wanted)[3]
    assert row["axes"] == {"training.seq_len": 4096, "cluster.pools.0.nodes": 2, "constraints.framework": "fsdp2"}
    assert row["recommended"]["settings"]["nodes"] == 2


@pytest.mark.parametrize(
    ("path", "message"),
    [("cluster.pools.1.nodes", "is a list of 1, which has no place '1'"), ("model.preset.x", "model.preset is no object and no list")],
)
def test_an_axis_that_leads_nowhere(path: str, message: str) -> None:
    """It is named, with why."""
    with pytest.raises(InvalidRequestError, match=message):
        list(combinations(VARIED[1], {path: [1]}))


def test_the_first_mistakes_are_told_and_the_others_counted() -> None:
    """By the number of the request, and of the line."""
    wrong = BODY | {"training": {"seq_lan": 1}}
    with pytest.raises(WrongRequestsError) as told:
        wanted_of(BODY, *[wrong] * 50)
    assert (told.value.count, len(told.value.found), told.value.found[0][0]) == (50, MAX_SHOWN, ("requests", 1))
    with pytest.raises(WrongRequestsError) as told:
        read_lines(b"\n" + orjson.dumps(BODY) + b"\n\n" + orjson.dumps(wrong), LIMITS)
    assert [where for where, _ in told.value.found] == [("line", 4)]


def test_how_many_may_be_asked() -> None:
    """None at all and too many are refused before any is checked, fewer where whole plans are wanted."""
    few = SweepLimits(requests=4, plans=2)
    with pytest.raises(InvalidRequestError, match="these are 5 requests; at most 4 are planned with detail figures"):
        read_document({"requests": [{}] * 5}, few)
    with pytest.raises(InvalidRequestError, match=r"at most 2 are planned with detail plan.*with detail figures 4 are"):
        read_document({"requests": [{}] * 3, "detail": "plan"}, few)
    with pytest.raises(InvalidRequestError, match="9 requests"):
        read_document({"grid": {"base": {}, "axes": {"a": [1, 2, 3], "b": [1, 2, 3]}}}, few)
    for nothing in ({"requests": []}, {"grid": {"base": {}, "axes": {"a": []}}}):
        with pytest.raises(InvalidRequestError, match="there is no request in it"):
            read_document(nothing, few)


def test_csv_has_the_figures_of_the_rows() -> None:
    """What the grid varies comes first; figures stand under their paths, and whole plans give the same table."""
    grid = {"base": VARIED[1], "axes": {"training.seq_len": [4096, 8192], "constraints.strategy": ["zero3", None]}}
    tables = []
    for detail in ("figures", "plan"):
        wanted = read_document({"grid": grid, "detail": detail}, LIMITS)
        rows = rows_of(wanted)
        text = header(wanted.axes) + table(map(orjson.dumps, rows), wanted.axes)
        tables.append(list(csv.DictReader(io.StringIO(text.decode()))))
    assert tables[0] == tables[1]
    assert list(tables[0][0])[:3] == ["index", *grid["axes"]]  # type: ignore[misc]
    for cells, row in zip(tables[0], rows, strict=True):
        assert int(cells["recommended.memory.gpu.device_bytes"]) == row["recommended"]["memory"]["gpu"]["device_bytes"]
        assert float(cells["recommended.time.interval_90_s.1"]) == row["recommended"]["time"]["interval_90_s"][1]
        assert cells["constraints.strategy"] == (row["axes"]["constraints.strategy"] or "")
        assert {column.rpartition(".")[2] for column in COLUMNS if not cells[column]} <= MAY_BE_EMPTY


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_is_a_formula(text: str) -> None:
    """Text that a spreadsheet would reckon with gets an apostrophe, in rows and in the header; numbers are left alone."""
    row = {"index": 0, "axes": {text: text, "n": -1.5}, "error": {"detail": text}}
    made = header([text, "n"]) + table([orjson.dumps(row)], [text, "n"])
    names, cells = csv.reader(io.StringIO(made.decode(), newline=""))
    assert names[1] == cells[1] == cells[-1] == f"'{text}"
    assert cells[2] == "-1.5"


@pytest.fixture
def sweeps(database: Database) -> Sweeps:
    """The use cases, without anybody who works."""
    return Sweeps(database, SweepOptions(waiting_max=3))


def worker_of(database: Database, **options: Any) -> ChunkWorker:
    return ChunkWorker(database, RowMaker(), SweepOptions(**options))


def rows_kept(sweeps: Sweeps, sweep_id: str) -> list[int]:
    """Numbers of the rows there are."""
    return [orjson.loads(line)["index"] for block in sweeps.results(sweep_id) for line in block.splitlines()]


def test_a_sweep_is_worked_on_chunk_by_chunk(database: Database, sweeps: Sweeps) -> None:
    """Queued, running, done; its rows can be read meanwhile, each once and in order."""
    made = sweeps.create(wanted_of(*[BODY] * PLANS_CHUNK, SENSELESS, detail="plan"))
    worker, sweep_id = worker_of(database), made.sweep.id
    assert (made.sweep.state, made.sweep.done, made.expires_at) == ("queued", 0, None)
    assert worker.work(ChunkKey(sweep_id, 1))
    there = sweeps.get(sweep_id).sweep
    assert (there.state, there.done, there.counts["failed"]) == ("running", 1, 1)
    assert rows_kept(sweeps, sweep_id) == [PLANS_CHUNK]
    assert worker.work(ChunkKey(sweep_id, 0))
    done = sweeps.get(sweep_id)
    assert (done.sweep.state, done.sweep.done, done.sweep.counts["fits"], len(done.sweep.engine_versions)) == ("done", 21, 20, 1)
    assert done.expires_at is not None and done.edit_token is None
    assert rows_kept(sweeps, sweep_id) == list(range(21))


def test_the_first_result_of_a_chunk_stays(database: Database, sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers on one chunk, since one seemed dead: whoever is second changes nothing."""
    sweep_id = sweeps.create(wanted_of(BODY)).sweep.id
    slow, fast = worker_of(database, lease_s=0.0), worker_of(database)

    def meanwhile() -> bool:
        assert fast.work(ChunkKey(sweep_id, 0))
        monkeypatch.setattr("app.services.sweeps.rows.brief_plan", lambda *_: 1 / 0)
        return True

    assert slow.work(ChunkKey(sweep_id, 0), meanwhile)
    assert sweeps.get(sweep_id).sweep.counts == {"fits": 1, "tight": 0, "does_not_fit": 0, "failed": 0}
    assert rows_kept(sweeps, sweep_id) == [0]


def test_a_chunk_belongs_to_one_worker_at_a_time(database: Database, sweeps: Sweeps) -> None:
    """While it gives signs of life nobody else takes it; given back it is free at once."""
    sweep_id = sweeps.create(wanted_of(BODY, BODY)).sweep.id
    key, worker = ChunkKey(sweep_id, 0), worker_of(database)
    seen = []

    def look() -> bool:
        seen.append(worker_of(database).next_key())
        return len(seen) < 2

    assert not worker.work(key, look), "given back"
    assert seen == [None, None]
    assert worker.next_key() == key
    assert rows_kept(sweeps, sweep_id) == []


def test_a_cancelled_sweep_stops(database: Database, sweeps: Sweeps) -> None:
    """What is done stays; the chunk under way ends at its next sign of life, and no other is begun."""
    made = sweeps.create(wanted_of(*[BODY] * (PLANS_CHUNK + 1), detail="plan"))
    sweep_id, token = made.sweep.id, made.edit_token or ""
    worker = worker_of(database, lease_s=0.0)
    planned_rows = []

    def cancel() -> bool:
        planned_rows.append(sweeps.cancel(sweep_id, token).sweep.state)
        return True

    assert worker.work(ChunkKey(sweep_id, 0), cancel), "nobody wants it any more"
    assert planned_rows == ["cancelled"]
    assert worker.next_key() is None
    assert worker.work(ChunkKey(sweep_id, 1))
    there = sweeps.get(sweep_id)
    assert (there.sweep.state, there.sweep.done, rows_kept(sweeps, sweep_id)) == ("cancelled", 0, [])
    assert there.expires_at is not None


def test_small_sweeps_do_not_wait_for_large_ones(database: Database, sweeps: Sweeps) -> None:
    """First chunks of all before second ones of any."""
    large = sweeps.create(wanted_of(*[BODY] * (2 * CHUNK))).sweep.id
    small = sweeps.create(wanted_of(BODY)).sweep.id
    worker = worker_of(database)
    order = []
    while (key := worker.next_key()) is not None:
        order.append(key)
        assert worker.work(key)
    assert order == [ChunkKey(large, 0), ChunkKey(small, 0), ChunkKey(large, 1)]


def test_no_more_than_some_wait(database: Database, sweeps: Sweeps) -> None:
    """One more is refused until one is done."""
    first = sweeps.create(wanted_of(BODY)).sweep.id
    for _ in range(2):
        sweeps.create(wanted_of(BODY))
    with pytest.raises(TooManySweepsError, match="3 sweeps wait or run"):
        sweeps.check_room()
    with pytest.raises(TooManySweepsError):
        sweeps.create(wanted_of(BODY))
    assert sweeps.unfinished() == (3, 3)
    worker_of(database).work(ChunkKey(first, 0))
    sweeps.create(wanted_of(BODY))


def test_finished_sweeps_are_kept_for_some_days(database: Database, sweeps: Sweeps) -> None:
    """Those that are not finished stay, whatever their age."""
    done, waiting = (sweeps.create(wanted_of(BODY)).sweep.id for _ in range(2))
    worker_of(database).work(ChunkKey(done, 0))
    worker_of(database, keep_days=1).delete_expired()
    expires = sweeps.get(done).expires_at
    assert expires is not None and timedelta(days=6.9) < expires - datetime.now(UTC) <= timedelta(days=7)
    worker_of(database, keep_days=0).delete_expired()
    with database.session() as session:
        kept = session.connection().exec_driver_sql("SELECT sweep_id FROM sweep_chunks").scalars().all()
    assert kept == [waiting]


def test_the_queue_of_one_process(database: Database, sweeps: Sweeps) -> None:
    """It begins with what it finds, is woken for what comes, outlives faults, and stops when told."""
    before = sweeps.create(wanted_of(BODY)).sweep.id
    queue = LocalQueue(worker_of(database))
    queue.start()
    until(lambda: sweeps.get(before).sweep.state == "done")
    later = sweeps.create(wanted_of(BODY)).sweep.id
    queue.wake()
    until(lambda: sweeps.get(later).sweep.state == "done", within_s=4)
    queue.close()
    left = sweeps.create(wanted_of(BODY)).sweep.id
    queue.wake()
    assert sweeps.get(left).sweep.state == "queued"
