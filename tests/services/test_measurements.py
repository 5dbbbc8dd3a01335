"""Measurements on both databases: kept once, listed, gone with their plan; and what they say, which is taken back with them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from app import ENGINE_VERSION
from app.domain.errors import ConflictError, InvalidRequestError, NotFoundError
from app.services import measurements
from app.services.calibrate import Calibrator
from app.services.measured import Counter, MeasurementIn
from app.services.measurements import Measurements
from app.services.plan import planned
from app.services.predicted import parts_of, prediction_of, situation_of
from app.services.request import PlanRequest
from app.services.saved_plans import ForbiddenError, SavedPlan, SavedPlans
from app.store import migrate
from app.store.session import Database
from app.web.schemas import EXAMPLE_REQUEST

Document = dict[str, Any]


def document_of(**changes: Any) -> Document:
    return planned(PlanRequest.model_validate(EXAMPLE_REQUEST | changes)).document()


PLAN = document_of()
RESERVED = PLAN["recommended"]["memory"]["gpu"]["peak_reserved_bytes"]
STEP = PLAN["recommended"]["time"]["step_s"]


def peak(times: float, counter: Counter = "reserved") -> MeasurementIn:
    return MeasurementIn(peak_bytes=round(RESERVED * times), counter=counter, expandable_segments=False)


@pytest.fixture
def calibrator(database: Database) -> Calibrator:
    return Calibrator(database)


@pytest.fixture
def kept(database: Database, calibrator: Calibrator) -> Measurements:
    return Measurements(database, calibrator)


@pytest.fixture
def save(database: Database, calibrator: Calibrator) -> Callable[..., SavedPlan]:
    plans = SavedPlans(database, on_deleted=calibrator.refresh)
    return lambda document=PLAN: plans.save(EXAMPLE_REQUEST, document)


def test_a_run_is_kept_as_it_was_measured(kept: Measurements, save: Callable[..., SavedPlan]) -> None:
    """Every field, and beside it what the plan said; the plan is the same as before."""
    plan = save()
    given = MeasurementIn(
        peak_bytes=70 * 2**30, counter="reserved", step_s=9.5, oom=False, note=" 模型 ", other_peaks={"device": 71 * 2**30},
        moments={"forward": 60 * 2**30}, expandable_segments=False, versions={"torch": "2.13.0"},
    )  # fmt: skip
    made = kept.add(plan.id, given, client="somebody").measured
    found, (run,) = kept.of_plan(plan.id)
    assert run == made
    assert (run.peak_bytes, run.counter, run.step_s, run.oom, run.note, run.owner) == (
        70 * 2**30,
        "reserved",
        9.5,
        False,
        "模型",
        "somebody",
    )
    shown = {"other_peaks", "moments", "expandable_segments", "versions"}
    assert run.details == given.model_dump(mode="json", include=shown)
    assert run.predicted == prediction_of(PLAN)
    assert run.engine_version == ENGINE_VERSION
    assert (found.request, found.answer) == (plan.request, plan.answer)


def test_what_runs_say_is_taken_back_with_them(kept: Measurements, calibrator: Calibrator, save: Callable[..., SavedPlan]) -> None:
    """Three runs calibrate; with the last one gone, or the plan, the answer is that of before."""
    plan = save()
    before = calibrator.of(PLAN)
    ids = [kept.add(plan.id, peak(1.03)).measured.id for _ in range(3)]
    said = calibrator.of(PLAN)
    assert (said["runs"], said["applied"], said["says"]) == (3, True, "calibrated by 3 runs here")
    for measurement in ids:
        kept.delete(plan.id, measurement, plan.edit_token or "")
    assert calibrator.of(PLAN) == before
    assert before["applied"] is False
    kept.add(plan.id, peak(1.03))
    assert calibrator.of(PLAN)["says"] == "calibrated by 1 run here"
    SavedPlans(kept._database, on_deleted=calibrator.refresh).delete(plan.id, plan.edit_token or "")
    assert calibrator.of(PLAN) == before


@pytest.mark.parametrize("times", [0.2, 0.97, 1.02, 1.19])
def test_counted_and_derived_terms_never_move(
    kept: Measurements, calibrator: Calibrator, save: Callable[..., SavedPlan], times: float
) -> None:
    """Each total moves by the factor's share of the fitted terms in it, and by nothing else; the answer itself stays as it is."""
    plan, before = save(), copy.deepcopy(PLAN)
    for _ in range(4):
        kept.add(plan.id, peak(times))
    said = calibrator.of(PLAN)["memory"]
    gpu = PLAN["recommended"]["memory"]["gpu"]
    fitted = sum(term["bytes"] for term in gpu["terms"] if term["exactness"] == "fitted")
    assert said["fitted_bytes"] == fitted
    assert 0.8 <= said["factor"] <= 1.2
    assert (said["factor"] > 1) is (times > 1)
    assert said["device_bytes"] - gpu["device_bytes"] == pytest.approx((said["factor"] - 1) * fitted, abs=1)
    assert said["bytes"] == pytest.approx((said["factor"] - 1) * fitted, abs=1)
    assert said["peak_allocated_bytes"] == gpu["peak_allocated_bytes"]  # nothing in it is fitted
    assert before == PLAN


@pytest.mark.parametrize(
    "strategy", ["ddp/zero1", "deepspeed/zero1", "deepspeed/zero2", "deepspeed/zero3", "fsdp2/fsdp_full", "fsdp2/hsdp"]
)
def test_parts_add_up_to_the_totals(strategy: str) -> None:
    """What a run is compared with is what the plan says, by every counter."""
    framework, name = strategy.split("/")
    document = document_of(model={"preset": "tinyllama-1.1b"}, constraints={"framework": framework, "strategy": name})
    gpu, prediction = document["recommended"]["memory"]["gpu"], prediction_of(document)
    parts = parts_of(prediction, "memory")
    for counter, key in (("allocated", "peak_allocated_bytes"), ("reserved", "peak_reserved_bytes"), ("device", "device_bytes"),
                         ("reserved_expandable", "peak_reserved_expandable_bytes"), ("needed", "needed_bytes")):  # fmt: skip
        assert parts[counter].total == pytest.approx(gpu[key], abs=10), counter
        assert parts[counter].fixed >= 0
        assert parts[counter].fitted >= -10
    assert parts_of(prediction, "time")["step"].total == pytest.approx(document["recommended"]["time"]["step_s"])
    assert prediction["device_memory_bytes"] == pytest.approx(gpu["capacity_bytes"] / 0.95, rel=1e-9)


@pytest.mark.parametrize("counter", ["reserved", "device"])
def test_segments_that_grow_have_a_total_of_their_own(
    kept: Measurements, calibrator: Calibrator, save: Callable[..., SavedPlan], counter: Counter
) -> None:
    """As launch.sh sets them; a run that does not say is compared with the nearer total."""
    plan, gpu = save(), PLAN["recommended"]["memory"]["gpu"]
    grown = gpu["peak_reserved_expandable_bytes"]
    total = grown if counter == "reserved" else grown + gpu["device_bytes"] - gpu["peak_reserved_bytes"]
    for said in (True, None):
        kept.add(plan.id, MeasurementIn(peak_bytes=total, counter=counter, expandable_segments=said))
    assert calibrator.of(PLAN)["memory"]["factor"] == 1.0
    assert calibrator.of(PLAN)["memory"]["runs"] == 2
    told = MeasurementIn(peak_bytes=total, counter=counter, expandable_segments=False)
    for _ in range(3):
        kept.add(plan.id, told)
    assert calibrator.of(PLAN)["memory"]["factor"] < 1.0


def test_time_is_corrected_by_steps_and_by_tokens(kept: Measurements, calibrator: Calibrator, save: Callable[..., SavedPlan]) -> None:
    """A rate of tokens is a step; a run that failed has none."""
    plan = save()
    tokens = STEP * PLAN["recommended"]["time"]["tokens_per_s"]
    kept.add(plan.id, MeasurementIn(step_s=STEP * 1.1))
    kept.add(plan.id, MeasurementIn(tokens_per_s=tokens / (STEP * 1.1)))
    kept.add(plan.id, MeasurementIn(step_s=STEP * 1.1))
    kept.add(plan.id, MeasurementIn(step_s=STEP * 5, oom=True))
    said = calibrator.of(PLAN)["time"]
    assert said["runs"] == 3
    fitted = said["fitted_s"]
    assert said["step_s"] == pytest.approx(STEP + (said["factor"] - 1) * fitted)
    assert said["factor"] == pytest.approx(1 + 0.1 * STEP / fitted * 3 / 5, rel=1e-3)
    assert said["tokens_per_s"] == pytest.approx(tokens / said["step_s"])


def test_a_run_out_of_memory_raises_what_is_needed(kept: Measurements, calibrator: Calibrator, save: Callable[..., SavedPlan]) -> None:
    """The plan was to fit; it did not."""
    kept.add(save().id, MeasurementIn(oom=True))
    said = calibrator.of(PLAN)["memory"]
    assert said["factor"] == pytest.approx(1.1)
    assert said["needed_bytes"] > PLAN["recommended"]["memory"]["gpu"]["needed_bytes"]


@pytest.mark.parametrize(
    "changes",
    [
        {"constraints": {"framework": "fsdp2", "strategy": "fsdp_full"}},
        {"constraints": {"framework": "deepspeed", "strategy": "zero3"}},
        {"cluster": {"pools": [{"gpu": "h200-sxm", "gpus_per_node": 8, "nodes": 1}]}},
        {"model": {"preset": "mixtral-8x7b-v0.1"}, "cluster": {"pools": [{"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": 8}]}},
        {"training": {"seq_len": 8192, "global_batch": 64, "optimizer": "adamw_8bit"}},
        {"training": {"seq_len": 8192, "global_batch": 64, "adapter": {"kind": "lora", "rank": 16}}},
    ],
)
def test_runs_of_another_setup_say_nothing(
    kept: Measurements, calibrator: Calibrator, save: Callable[..., SavedPlan], changes: Document
) -> None:
    """Another framework, sharding, GPU, kind of model, optimizer or adapter."""
    kept.add(save().id, peak(1.03))
    other = document_of(**changes)
    assert situation_of(other) != situation_of(PLAN)
    assert calibrator.of(other)["applied"] is False


def test_runs_of_another_size_do(kept: Measurements, calibrator: Calibrator, save: Callable[..., SavedPlan]) -> None:
    """Another model of the kind, another sequence, another number of nodes."""
    kept.add(save().id, peak(1.03))
    pinned = {"framework": "deepspeed", "strategy": "zero2"}
    other = document_of(model={"preset": "tinyllama-1.1b"}, training={"seq_len": 2048, "global_batch": 256}, constraints=pinned)
    assert calibrator.of(other)["says"] == "calibrated by 1 run here"


def test_runs_of_another_engine_are_kept_and_not_used(kept: Measurements, calibrator: Calibrator, save: Callable[..., SavedPlan]) -> None:
    """Their plan's figures are not today's; and an answer of an earlier engine is not corrected by today's runs."""
    aged = PLAN | {"engine_version": "0.0.9"}
    plan = save(aged)
    kept.add(plan.id, peak(1.03))
    assert len(kept.of_plan(plan.id)[1]) == 1
    assert calibrator.of(PLAN)["applied"] is False
    kept.add(save().id, peak(1.03))
    assert calibrator.of(PLAN)["runs"] == 1
    assert calibrator.of(aged)["applied"] is False


def test_a_key_keeps_one(kept: Measurements, save: Callable[..., SavedPlan]) -> None:
    """The same again is the same run; another measurement, or one of another plan, is refused."""
    plan, other = save(), save()
    first = kept.add(plan.id, peak(1.01), idempotency_key="run 1")
    again = kept.add(plan.id, peak(1.01), idempotency_key="run 1")
    assert (again.measured, again.replayed, first.replayed) == (first.measured, True, False)
    for plan_id, given in ((plan.id, peak(1.02)), (other.id, peak(1.01))):
        with pytest.raises(ConflictError, match="another request"):
            kept.add(plan_id, given, idempotency_key="run 1")
    assert len(kept.of_plan(plan.id)[1]) == 1


def test_a_plan_has_so_many_runs(kept: Measurements, save: Callable[..., SavedPlan], monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is refused, and says what to do."""
    monkeypatch.setattr(measurements, "MAX_RUNS", 2)
    plan = save()
    for _ in range(2):
        kept.add(plan.id, peak(1.01))
    with pytest.raises(ConflictError, match="delete some first"):
        kept.add(plan.id, peak(1.01))


def test_only_the_plans_token_takes_a_run_away(kept: Measurements, save: Callable[..., SavedPlan]) -> None:
    """And a run of another plan is not found under this one."""
    plan, other = save(), save()
    run = kept.add(plan.id, peak(1.01)).measured
    with pytest.raises(ForbiddenError):
        kept.delete(plan.id, run.id, other.edit_token or "")
    with pytest.raises(NotFoundError, match="no measurement"):
        kept.delete(other.id, run.id, other.edit_token or "")
    for plan_id in ("none", "nul\0"):
        with pytest.raises(NotFoundError):
            kept.add(plan_id, peak(1.01))
        with pytest.raises(NotFoundError):
            kept.delete(plan_id, run.id, plan.edit_token or "")
    assert len(kept.of_plan(plan.id)[1]) == 1


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({}, "peak_bytes", "nothing was measured"),
        ({"note": "only words"}, "peak_bytes", "nothing was measured"),
        ({"peak_bytes": 2**36}, "counter", "without its counter"),
        ({"counter": "device", "step_s": 1.0}, "peak_bytes", "without peak_bytes"),
        ({"peak_bytes": 90 * 2**30, "counter": "device"}, "peak_bytes", "one h100-sxm-80gb of this plan has: .* × 1.05 = "),
        ({"step_s": 9.0, "tokens_per_s": 7000}, "tokens_per_s", "9 × tokens_per_s 7000 = 63,000 tokens a step, .* 524,288"),
        ({"step_s": 9.0, "note": "half \ud800"}, "note", "no text"),
    ],
)
def test_what_cannot_be_is_refused(kept: Measurements, save: Callable[..., SavedPlan], given: Document, field: str, message: str) -> None:
    """With the field and the arithmetic; nothing is kept."""
    plan = save()
    with pytest.raises(InvalidRequestError, match=message) as refused:
        kept.add(plan.id, MeasurementIn.model_construct(**MeasurementIn().model_dump() | given))
    assert refused.value.errors[0].loc == (field,)
    assert kept.of_plan(plan.id)[1] == ()
    kept.add(plan.id, MeasurementIn(peak_bytes=90 * 2**30, counter="device", oom=True))


def test_another_process_sees_it_a_little_later(database: Database, kept: Measurements, save: Callable[..., SavedPlan]) -> None:
    """What is in memory is read again beside a request once it is old; the request does not wait."""
    now = [0.0]
    other = Calibrator(database, clock=lambda: now[0])
    other.of(PLAN)
    other.close()
    kept.add(save().id, peak(1.03))
    assert other.of(PLAN)["applied"] is False
    now[0] = 60.0
    other.of(PLAN)
    other.close()
    assert other.of(PLAN)["runs"] == 1
    assert Calibrator(database, enabled=False).of(PLAN)["says"] == "calibration is switched off"
    assert other.of(PLAN, wanted=False)["applied"] is False


def test_without_a_database_there_is_no_calibration(tmp_path: Any) -> None:
    """And no error: not where it cannot be reached, nor where the table is not there."""
    for url in (f"sqlite:///{tmp_path}/no/such/folder.db", f"sqlite:///{tmp_path}/empty.db"):
        database = Database(url)
        found = Calibrator(database)
        found.refresh()
        assert found.of(PLAN) == found.of(PLAN) | {"runs": 0, "applied": False}
        found.close()
        database.close()


def test_the_version_before_deletes_runs_with_their_plan(database: Database, kept: Measurements, save: Callable[..., SavedPlan]) -> None:
    """The database sees to it: that version knows no measurements."""
    plan = save()
    kept.add(plan.id, peak(1.03))
    with database.session(write=True) as session:
        session.execute(text("DELETE FROM plans WHERE id = :id"), {"id": plan.id})
    with database.session() as session:
        assert session.execute(text("SELECT count(*) FROM measurements")).scalar() == 0


def test_a_step_back_takes_measurements_and_nothing_else(database: Database, kept: Measurements, save: Callable[..., SavedPlan]) -> None:
    """Down to the schema before and up again: plans are there, and runs can be kept."""
    plan = save()
    kept.add(plan.id, peak(1.03))
    database.close()
    migrate.downgrade(database.url, "0004")
    assert SavedPlans(database).get(plan.id).answer == plan.answer
    migrate.upgrade(database.url)
    assert kept.of_plan(plan.id)[1] == ()
    kept.add(plan.id, peak(1.03))
