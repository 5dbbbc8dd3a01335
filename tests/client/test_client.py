"""The client against a running service: everything it does, and both ways of failing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from app import ENGINE_VERSION
from app.client import Client, PlanRequest, ProblemError, Retry, ServiceUnavailableError
from app.domain.errors import FieldError, InvalidRequestError
from app.services.plan import planned
from app.settings import AppSettings
from app.web.schemas import EXAMPLE_REQUEST, PlanOut
from tests.served import served

ZERO = EXAMPLE_REQUEST | {"constraints": {"framework": "deepspeed", "strategy": "zero2"}}
TOO_BIG = EXAMPLE_REQUEST | {"model": {"preset": "llama-3.1-70b"}, "constraints": {"framework": "deepspeed", "strategy": "zero1"}}
NOBODY = "http://127.0.0.1:9"
AT_ONCE = Retry(tries=1)


def test_a_plan_is_what_the_engine_answers(remote: Client) -> None:
    """From the request's own type and from a mapping; with every field, those the model does not name included."""
    ours = planned(PlanRequest.model_validate(ZERO)).document()
    for request in (ZERO, PlanRequest.model_validate(ZERO)):
        plan = remote.plan(request)
        assert isinstance(plan, PlanOut)
        assert plan.recommended.memory.gpu.device_bytes == ours["recommended"]["memory"]["gpu"]["device_bytes"]
        answered = plan.model_dump(mode="json")
        assert answered.pop("calibration")["applied"] is False
        assert answered.pop("search")["candidates"] == ours["search"]["candidates"]
        assert answered == json.loads(json.dumps({key: value for key, value in ours.items() if key != "search"}))


def test_files_of_a_plan(remote: Client) -> None:
    """In both dialects, as the answer holds them."""
    plan = remote.plan(ZERO)
    assert remote.plan_file(ZERO, "ds_config.json") == plan.files["ds_config.json"]
    assert remote.plan_file(ZERO, "ds_config.json", "hf_auto") == plan.dialects["hf_auto"]["ds_config.json"]


def test_a_saved_plan_from_its_save_to_its_end(remote: Client) -> None:
    """Saved once under its key, read, listed, downloaded, planned again, compared and deleted."""
    saved = remote.save(ZERO, "nightly", "by a test", idempotency_key="run 1")
    again = remote.save(PlanRequest.model_validate(ZERO), "nightly", "by a test", idempotency_key="run 1")
    other = remote.save(ZERO | {"objective": "simplest"}, "other")
    assert (again.id, again.edit_token) == (saved.id, None)
    assert saved.edit_token
    assert remote.get(saved.id).model_dump() == saved.model_dump() | {"edit_token": None}
    assert f"/plans/{saved.id}" in remote.file(saved.id, "launch.sh")
    assert remote.file(saved.id, "ds_config.json", "hf_auto") == saved.dialects["hf_auto"]["ds_config.json"]
    assert [plan.id for plan in remote.plans("nightly")] == [saved.id]
    assert remote.replan(saved.id).changes.engine_version == {"then": ENGINE_VERSION, "now": ENGINE_VERSION}
    assert [plan.id for plan in remote.compare(saved.id, other.id).plans] == [saved.id, other.id]
    with pytest.raises(ProblemError) as refused:
        remote.delete(saved.id, "another token")
    assert refused.value.status == 403
    remote.delete(saved.id, saved.edit_token)
    with pytest.raises(ProblemError) as gone:
        remote.get(saved.id)
    assert (gone.value.status, gone.value.code) == (404, "not_found")


def test_two_saves_of_the_same_are_two_plans(remote: Client) -> None:
    """The key that the client makes is one call's."""
    assert remote.save(ZERO, "twice").id != remote.save(ZERO, "twice").id


def test_lists_go_on_over_pages(remote: Client) -> None:
    """Page by page, and no further than is asked for; every filter is the service's."""
    made = [remote.save(ZERO, f"page test {n}").id for n in range(3)]
    assert [plan.id for plan in remote.plans("page test", page_size=1)] == made[::-1]
    assert next(remote.plans(name="page test", page_size=2)).id == made[-1]
    assert {plan.id for plan in remote.plans(name="page test", model="llama", gpu="h100")} == set(made)
    assert list(remote.plans(gpu="mi300")) == []
    with pytest.raises(ProblemError) as refused:
        list(remote.plans(page_size=1000))
    assert refused.value.errors[0].loc == ("limit",)


def test_catalogues(remote: Client) -> None:
    """Entries with their figures, and where those are from."""
    gpus = {gpu.key: gpu for gpu in remote.gpus()}
    assert gpus["h100-sxm-80gb"].model_dump()["usable_bytes"] > 75e9
    assert {node.key for node in remote.instances()} >= {"aws-p5.48xlarge"}
    assert {model.key for model in remote.models()} >= {"llama-3.1-8b"}
    assert remote.catalog("gpus").sources


def test_ready(remote: Client) -> None:
    """Where plans can be saved."""
    assert remote.ready()["status"] == "ready"


def test_a_refusal_names_the_fields(remote: Client) -> None:
    """As the service does, with the nearest name."""
    with pytest.raises(ProblemError) as refused:
        remote.plan(EXAMPLE_REQUEST | {"trainig": {}})
    problem = refused.value
    assert (problem.status, problem.code) == (422, "invalid_request")
    assert FieldError(("trainig",), "the request has no key 'trainig'", "did you mean training?") in problem.errors
    assert "did you mean training?" in str(problem)
    assert problem.request_id
    with pytest.raises(ProblemError, match="Does not fit") as nothing:
        remote.plan_file(TOO_BIG, "ds_config.json")
    assert nothing.value.status == 409


def test_that_nothing_fits_is_an_answer(remote: Client) -> None:
    """Not an error: the shortfall and the ways out are in it."""
    plan = remote.plan(TOO_BIG)
    assert plan.verdict == "does_not_fit"
    assert plan.files == {}


def test_nobody_answers() -> None:
    """An error that says where, of the kind that means: try again later."""
    with Client(NOBODY, retry=AT_ONCE) as client, pytest.raises(ServiceUnavailableError, match=f"{NOBODY} does not answer") as away:
        client.plan(ZERO)
    assert (away.value.status, away.value.retry_after_s) == (None, None)


def test_a_service_without_its_database(tmp_path: object) -> None:
    """Plans as ever; saving is put off as the service says, and what is wrong is in ready()'s error."""
    waits: list[float] = []
    settings = AppSettings(database_url=f"postgresql://nobody@/none?host={tmp_path}", log_format="text", database_connect_timeout_s=1)
    with served(settings) as url, Client(url, retry=Retry(tries=2, sleep=waits.append)) as client:
        assert client.plan(ZERO).verdict == "fits"
        with pytest.raises(ServiceUnavailableError, match="database does not answer") as away:
            client.save(ZERO)
        assert (away.value.status, away.value.retry_after_s, waits) == (503, 5, [5])
        with pytest.raises(ServiceUnavailableError) as unready:
            client.ready()
        assert [error.loc for error in unready.value.errors] == [("database",)]
        assert waits == [5]


def test_a_rate_limit_is_waited_out(tmp_path: object) -> None:
    """429 with Retry-After: the client comes back when it may."""
    settings = AppSettings(database_url=f"sqlite:///{tmp_path}/service.db", log_format="text", rate_limit="2/second")
    with served(settings) as url, Client(url) as client:
        assert [len(client.gpus()) > 0 for _ in range(4)] == [True] * 4
        with Client(url, retry=AT_ONCE) as hasty, pytest.raises(ServiceUnavailableError, match="may send") as refused:
            for _ in range(4):
                hasty.gpus()
        assert refused.value.status == 429


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host", "http://", "https://[::1", "http://host:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidRequestError) as refused:
        Client(url)
    assert refused.value.errors[0].loc == ("url",)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"x"])
def test_what_is_no_json_is_refused(remote: Client, value: object) -> None:
    """NaN must not become null on its way."""
    with pytest.raises(InvalidRequestError, match="cannot be written as JSON"):
        remote.plan(ZERO | {"headroom_frac": value})


def test_importing_it_brings_neither_service_nor_engine() -> None:
    """A pipeline that only asks does not pay for what answers."""
    names = ("fastapi", "sqlalchemy", "numpy", "jinja2", "alembic")
    script = f"import sys; from app.client import Client; print([m for m in {names} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60).stdout == "[]\n"
