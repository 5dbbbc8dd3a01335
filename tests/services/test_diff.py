"""What moved between two answers, and why: read from the documents alone."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest

from app import ENGINE_VERSION
from app.domain.errors import ConflictError, InvalidRequestError, NotFoundError
from app.services.compare import compare
from app.services.diff import MAX_DIFF_LINES, alike, file_changes, rows
from app.services.plan import answer
from app.services.replan import changes, replan
from app.services.request import PlanRequest
from app.services.saved_plans import SavedPlans
from app.store.repository import PlanFilter
from app.store.session import Database
from app.web.schemas import EXAMPLE_REQUEST


@pytest.fixture(scope="module")
def today() -> dict[str, Any]:
    """The answer to the example, as it lies in a database."""
    document: dict[str, Any] = orjson.loads(orjson.dumps(answer(PlanRequest.model_validate(EXAMPLE_REQUEST)).document()))
    return document


@pytest.fixture
def old(today: dict[str, Any]) -> dict[str, Any]:
    """The same, free to be made another engine's."""
    return copy.deepcopy(today) | {"engine_version": "0.1.0"}


@pytest.fixture
def plans(database: Database) -> SavedPlans:
    return SavedPlans(database)


def gpu(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["recommended"]["memory"]["gpu"]
    return found


def moved(old: dict[str, Any], today: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["section"], row["key"]): row for row in changes(old, today)["moved"]}


def test_nothing_moves_between_equal_answers(old: dict[str, Any], today: dict[str, Any]) -> None:
    """Time of the search and the engine's name in headers are no change."""
    old["search"]["elapsed_ms"] += 1
    old["files"] = {name: text.replace(ENGINE_VERSION, "0.1.0", 1) for name, text in old["files"].items()}
    assert old["files"] != today["files"]
    found = changes(old, today)
    assert (found["moved"], found["files"]) == ([], [])
    assert found["summary"] == f"Nothing moved from engine 0.1.0 to {ENGINE_VERSION}."
    assert found["engine_version"] == {"then": "0.1.0", "now": ENGINE_VERSION}


def test_a_moved_term_says_which_part_of_its_formula_moved(old: dict[str, Any], today: dict[str, Any]) -> None:
    """Another equation, other numbers, another rate, a term that is new or gone."""
    terms = gpu(old)["terms"]
    terms[0] |= {"equation": "params × 4", "bytes": terms[0]["bytes"] + 7}
    terms[1] |= {"formula": "1 × 2", "bytes": 2}
    terms[2]["bytes"] -= 5
    new, terms[3]["name"] = terms[3]["name"], "former buffer"
    gpu(old)["device_bytes"] -= 2
    found = moved(old, today)
    why = {key: row["why"] for (section, key), row in found.items() if section == "gpu_memory"}
    assert why[terms[0]["name"]] == "another equation: params × bytes_each / ranks, was params × 4"
    assert "was 1 × 2" in why[terms[1]["name"]]
    assert "another rate" in why[terms[2]["name"]]
    assert why[new] == "counted by this engine only"
    assert why["former buffer"] == "not counted by this engine"
    assert why["device_bytes"].startswith("mostly ")
    row = found["gpu_memory", terms[2]["name"]]
    assert (row["change"], row["unit"], row["now"] - row["then"]) == (5, "bytes", 5)


def test_a_total_is_explained_by_a_part_that_moved_its_way(old: dict[str, Any], today: dict[str, Any]) -> None:
    """Less in all is not explained by a term that grew, however much; an exposed time has the reason of its collective."""
    flows = old["recommended"]["communication"]
    flows["terms"][0]["bytes_per_step"] -= 2**33
    flows["terms"][1]["bytes_per_step"] += 2**34
    flows["terms"][1]["exposed_s"] += 1.0
    flows["terms"][1]["formula"] = "1 × 1"
    flows["bytes_per_step"] += 2**33
    found = moved(old, today)
    name = flows["terms"][1]["name"]
    assert found["communication", "bytes_per_step"]["why"] == f"mostly {name}: 16 GiB less"
    assert found["communication", f"{name}, exposed"]["why"] == found["communication", name]["why"]
    assert "was 1 × 1" in found["communication", name]["why"]


def test_former_settings_are_judged_by_todays_engine(old: dict[str, Any], today: dict[str, Any]) -> None:
    """One of today's alternatives says how it compares; a strategy of the ladder why it was passed over."""
    other = today["alternatives"][0]
    old["recommended"] = copy.deepcopy(other)
    found = [row for (section, _), row in moved(old, today).items() if section == "settings"]
    assert found
    assert all("the former settings are alternative 2 now" in row["why"] for row in found)
    rung = next(rung for rung in today["ladder"] if rung["why_not"])
    old["recommended"]["settings"] |= {key: rung["settings"][key] for key in ("framework", "strategy")} | {"micro_batch": 77}
    why = moved(old, today)["settings", "micro_batch"]["why"]
    assert rung["label"] in why
    assert rung["why_not"] in why


def test_verdict_warnings_time_and_request(old: dict[str, Any], today: dict[str, Any]) -> None:
    """Every part of the answer has its rows and its reasons."""
    old["verdict"] = "tight"
    gone = today["warnings"][0]["code"]
    old["warnings"] = [*today["warnings"][1:], {"code": "old_news", "severity": "info", "message": "m", "field": "", "fix": ""}]
    old["recommended"]["time"]["step_s"] += 1.0
    old["recommended"]["time"]["compute_s"] += 1.0
    old["request"]["headroom_frac"] = 0.1
    old["model"]["counted_by"] = "a guess"
    found = moved(old, today)
    assert found["verdict", "verdict"]["then"] == "tight"
    assert "GiB of" in found["verdict", "verdict"]["why"]
    assert (found["warnings", gone]["then"], found["warnings", gone]["why"]) == (None, "new")
    assert (found["warnings", "old_news"]["now"], found["warnings", "old_news"]["why"]) == (None, "no longer said")
    assert found["time", "step_s"]["change"] == pytest.approx(-1.0)
    assert found["time", "step_s"]["why"] == "mostly compute: 1 s less"
    assert "reads this field differently" in found["request", "headroom_frac"]["why"]
    assert "was a guess" in found["model", "counted_by"]["why"]
    assert "The verdict was tight and is fits." in changes(old, today)["summary"]
    assert all(row["why"] for row in found.values())


def test_an_answer_of_an_engine_that_knew_less_is_read(today: dict[str, Any]) -> None:
    """A document without most parts is no error: what it lacks is new."""
    found = changes({"engine_version": "0.0.1", "verdict": "fits", "model": {"name": today["model"]["name"]}}, today)
    assert {row["section"] for row in found["moved"]} >= {"settings", "gpu_memory", "time"}
    assert {file["status"] for file in found["files"]} == {"added"}
    assert all(row["why"] for row in found["moved"])


def test_the_same_engine_with_other_data(old: dict[str, Any], today: dict[str, Any]) -> None:
    """Where the engine is the same, the catalogue or a fetched model is what changed."""
    gpu(old)["capacity_bytes"] += 1
    found = changes(old | {"engine_version": ENGINE_VERSION}, today)
    assert "catalogue" in found["summary"]
    assert [row["why"] for row in found["moved"]] == ["another figure in the catalogue"]


def test_file_changes() -> None:
    """Lines of a changed file, and which came or went; a long diff is cut and says so."""
    then = {"a": "# Written by Shardplan 1 for x.\none\ntwo\n", "b": "x"}
    now = {"a": "# Written by Shardplan 2 for x.\none\nthree\n", "c": "y"}
    found = {file["name"]: file for file in file_changes(then, now)}
    assert {name: file["status"] for name, file in found.items()} == {"a": "changed", "b": "removed", "c": "added"}
    assert found["a"]["diff"].splitlines()[-2:] == ["-two", "+three"]
    assert "Written" not in found["a"]["diff"]
    (long,) = file_changes({"a": "x\n" * 900}, {"a": "y\n" * 900})
    assert len(long["diff"].splitlines()) == MAX_DIFF_LINES + 1
    assert long["diff"].endswith("more lines)")


def test_rounding_is_no_difference() -> None:
    """Floats may differ in their last digits between processors; whole numbers may not."""
    assert alike(0.1 + 0.2, 0.3)
    assert alike(1, 1.0)
    assert not alike(10**15, 10**15 + 1)
    assert not alike(1.0, 1.00001)
    assert not alike(None, 0)


def test_terms_of_one_name_are_kept_apart(old: dict[str, Any]) -> None:
    """A name that comes twice has two rows."""
    terms = gpu(old)["terms"]
    terms.append(dict(terms[0]))
    keys = [row.key for row in rows([old]) if row.section == "gpu_memory"]
    assert {terms[0]["name"], f"{terms[0]['name']} (2)"} <= set(keys)
    assert len(keys) == len(set(keys))


def test_replan_answers_and_saves_nothing(plans: SavedPlans, old: dict[str, Any], today: dict[str, Any]) -> None:
    """Today's plan for the request as it was saved; the saved plan is what it was."""
    gpu(old)["terms"][0]["bytes"] -= 1
    saved = plans.save(EXAMPLE_REQUEST, old, name="first")
    found = replan(saved)
    assert {key: found[key] for key in ("verdict", "recommended", "files")} == {
        key: answer(PlanRequest.model_validate(EXAMPLE_REQUEST)).document()[key] for key in ("verdict", "recommended", "files")
    }
    assert found["id"] is None
    assert found["replan_of"] == {
        "id": saved.id, "name": "first", "created_at": saved.created_at.isoformat(), "engine_version": "0.1.0",
    }  # fmt: skip
    assert [row["change"] for row in found["changes"]["moved"]] == [1]
    assert plans.get(saved.id).answer == old
    assert len(plans.list(PlanFilter()).items) == 1


def test_a_request_that_is_no_longer_taken(plans: SavedPlans, today: dict[str, Any]) -> None:
    """A conflict that names the field and both engines; an entry that left the catalogue is said by the planner."""
    saved = plans.save(EXAMPLE_REQUEST | {"oracle": 1}, today | {"engine_version": "0.1.0"})
    with pytest.raises(ConflictError, match=rf"engine 0\.1\.0, and {ENGINE_VERSION} does not take it: oracle"):
        replan(saved)
    gone = plans.save(EXAMPLE_REQUEST | {"model": {"preset": "gone-8b"}}, today)
    with pytest.raises(InvalidRequestError, match="gone-8b"):
        replan(gone)


def test_compare(plans: SavedPlans, old: dict[str, Any], today: dict[str, Any]) -> None:
    """Every figure is either a difference or the same, with a value for each plan in the order asked for."""
    gpu(old)["terms"][0]["bytes"] -= 1
    one, two = plans.save(EXAMPLE_REQUEST, today, name="one"), plans.save(EXAMPLE_REQUEST, old, name="two")
    found = compare(plans, [two.id, one.id])
    assert [plan["name"] for plan in found["plans"]] == ["two", "one"]
    (row,) = found["differences"]
    assert row["values"] == [gpu(old)["terms"][0]["bytes"], gpu(today)["terms"][0]["bytes"]]
    assert {(r["section"], r["key"]) for r in found["same"]} | {(row["section"], row["key"])} == {(r.section, r.key) for r in rows([today])}


def test_what_cannot_be_compared(plans: SavedPlans, today: dict[str, Any]) -> None:
    """One plan, five, the same twice, or one that is not there."""
    ids = [plans.save(EXAMPLE_REQUEST, today).id for _ in range(5)]
    for wanted in (ids[:1], ids, []):
        with pytest.raises(InvalidRequestError, match="2 to 4"):
            compare(plans, wanted)
    with pytest.raises(InvalidRequestError, match="twice"):
        compare(plans, [ids[0], ids[0]])
    with pytest.raises(NotFoundError):
        compare(plans, [ids[0], "nope"])
    assert compare(plans, ids[:4])["differences"] == []
