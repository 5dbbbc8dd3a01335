"""Planning a saved plan again: of a fetched model, at the commit that was saved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.ingest.hub import Hub
from app.services.plan import answer
from app.services.replan import replan
from app.services.request import PlanRequest
from app.services.saved_plans import SavedPlan, SavedPlans
from app.store.session import Database
from tests import CONFIGS
from tests.ingest.hub_server import COMMIT, StandIn, says, standing_in

LATER = "f" * 40


def read_config(name: str) -> dict[str, Any]:
    """A config.json of the test data."""
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())["config"]
    return config


@pytest.fixture
def server() -> Iterator[StandIn]:
    """A hub on this machine."""
    with standing_in(read_config("Qwen__Qwen2.5-7B")) as server:
        yield server


def body(revision: str | None) -> dict[str, Any]:
    """A request for a model of that hub."""
    model = {"hf_id": "org/name"} | ({"revision": revision} if revision else {})
    return {"model": model, "training": {"seq_len": 4096}, "cluster": {"pools": [{"gpu": "h100-sxm-80gb", "gpus_per_node": 8}]}}


def saved(database: Database, server: StandIn, revision: str | None, *, recorded: bool = True) -> SavedPlan:
    """A plan that was saved then; an earlier engine recorded no commit."""
    hub = Hub(server.url, timeout_s=5, may_be_private=True)
    document = answer(PlanRequest.model_validate(body(revision)), hub).document()
    hub.close()
    if not recorded:
        document["model"] = {key: value for key, value in document["model"].items() if key not in ("hf_id", "revision")}
    return SavedPlans(database).save(body(revision), document)


def move_branches(server: StandIn) -> None:
    """Every branch and tag stands for another commit now, of another model."""
    server.others = {
        "/api/models/": says(200, {"id": "org/name", "sha": LATER}),
        f"/org/name/resolve/{LATER}/": says(200, read_config("Qwen__Qwen2.5-32B")),
    }


@pytest.mark.parametrize("revision", [None, "stable"])
def test_a_branch_that_moved_moves_nothing(database: Database, server: StandIn, revision: str | None) -> None:
    """The saved commit is planned, and the request stays what was asked."""
    kept = saved(database, server, revision)
    move_branches(server)
    hub = Hub(server.url, timeout_s=5, may_be_private=True)
    found = replan(kept, hub)
    hub.close()
    assert (found["changes"]["moved"], found["changes"]["files"]) == ([], [])
    assert found["model"]["revision"] == COMMIT
    assert found["request"]["model"]["revision"] == revision
    assert f"at {COMMIT}, the commit that was saved" in found["changes"]["summary"]


def test_where_no_commit_was_recorded_the_model_may_have_moved(database: Database, server: StandIn) -> None:
    """Which is said, and so is the commit it is read at now."""
    kept = saved(database, server, None, recorded=False)
    move_branches(server)
    hub = Hub(server.url, timeout_s=5, may_be_private=True)
    found = replan(kept, hub)
    hub.close()
    assert found["model"]["revision"] == LATER
    assert "was not saved then" in found["changes"]["summary"]
    why = {row["key"]: row["why"] for row in found["changes"]["moved"] if row["section"] == "model"}
    assert why["revision"] == "not recorded then"
    assert "total_params" in why
