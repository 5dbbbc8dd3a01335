"""What runs really took, over HTTP: the API, the forms on pages, and the calibration that is shown beside an answer."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import AppSettings
from app.web.schemas import EXAMPLE_REQUEST
from tests.web.keyed import keyed

HTML = {"accept": "text/html,*/*;q=0.8"}
HOSTILE = '</script><img src=x onerror=alert(1)>"'


@pytest.fixture
def plan(client: TestClient) -> dict[str, Any]:
    saved: dict[str, Any] = client.post("/plans", json=EXAMPLE_REQUEST | {"name": "nightly"}).json()
    return saved


def runs_path(plan: dict[str, Any]) -> str:
    return f"/plans/{plan['id']}/measurements"


def peak_of(plan: dict[str, Any], times: float) -> dict[str, Any]:
    return {"peak_bytes": round(plan["recommended"]["memory"]["gpu"]["peak_reserved_bytes"] * times), "counter": "reserved",
            "expandable_segments": False}  # fmt: skip


def calibration(client: TestClient, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = client.post(f"/plan{query}", json=EXAMPLE_REQUEST).json()["calibration"]
    return found


def test_answers_are_calibrated_beside_their_figures(client: TestClient, plan: dict[str, Any]) -> None:
    """The figures stay; the block says by how many runs, and can be left out; the JSON of the form's page has it too."""
    before = client.post("/plan", json=EXAMPLE_REQUEST).json()
    for times in (1.02, 1.03, 1.04):
        made = client.post(runs_path(plan), json=peak_of(plan, times) | {"step_s": 9.5})
        assert made.status_code == 201
        assert made.json()["error_frac"]["peak_bytes"] == pytest.approx(1 / times - 1, abs=1e-6)
    after = client.post("/plan", json=EXAMPLE_REQUEST).json()
    moved = {key for key in after if key != "search" and after[key] != before[key]}
    assert moved == {"calibration"}
    assert after["calibration"]["says"] == "calibrated by 3 runs here"
    assert after["calibration"]["memory"]["bytes"] > 0
    assert calibration(client, "?calibrate=false") == calibration(client) | {
        "runs": 0, "applied": False, "says": "calibration is switched off", "memory": None, "time": None,
    }  # fmt: skip
    assert client.get("/", headers={"accept": "application/json"}).json()["calibration"] == after["calibration"]


def test_a_saved_plan_stays_as_it_was(client: TestClient, plan: dict[str, Any]) -> None:
    """It has no calibration, which would go on changing; the list of its runs has."""
    before = client.get(f"/plans/{plan['id']}").content
    client.post(runs_path(plan), json=peak_of(plan, 1.02))
    assert client.get(f"/plans/{plan['id']}").content == before
    assert "calibration" not in plan
    listed = client.get(runs_path(plan)).json()
    assert [run["used_for"] for run in listed["items"]] == [["memory"]]
    assert listed["calibration"]["runs"] == 1


def test_a_run_taken_away_is_taken_out_of_the_calibration(client: TestClient, plan: dict[str, Any]) -> None:
    """At its own address, with the plan's token."""
    before = calibration(client)
    made = client.post(runs_path(plan), json=peak_of(plan, 1.02)).json()
    assert calibration(client) != before
    assert client.delete(made["links"]["self"], headers={"edit-token": plan["edit_token"]}).status_code == 204
    assert calibration(client) == before


def test_what_is_wrong_names_the_field(client: TestClient, plan: dict[str, Any]) -> None:
    """As everywhere."""
    for body, field in (({}, "peak_bytes"), ({"step_s": -1}, "step_s"), ({"peak_bytes": 2**37, "counter": "device"}, "peak_bytes"),
                        ({"peak": 1}, "peak"), ({"peak_bytes": 2**36, "counter": "felt"}, "counter")):  # fmt: skip
        refused = client.post(runs_path(plan), json=body)
        assert (refused.status_code, refused.json()["errors"][0]["loc"]) == (422, [field])
    said = client.post(runs_path(plan), json={"peak_bytes": 2**37, "counter": "device"}).json()["errors"][0]
    assert "137,438,953,472 (128 GiB) is more than one h100-sxm-80gb" in said["msg"]
    assert re.search(r"[\d,]+ bytes × 1.05 = [\d,]+ \(83.1 GiB\)", said["msg"])
    assert "oom: true" in said["hint"]
    assert client.post("/plans/none/measurements", json={"oom": True}).status_code == 404


def test_the_form_keeps_a_run_with_units_as_people_write_them(client: TestClient, plan: dict[str, Any]) -> None:
    """Sent twice it is kept once; the page then has it beside the prediction."""
    page = client.get(f"/plans/{plan['id']}", headers=HTML).text
    key = re.search(r'name="key" value="([^"]+)">\n\s*<div class="field', page)
    assert key is not None
    fields = {"key": key[1], "peak": "68,000 MiB", "counter": "reserved", "step": "9.5 s"}
    for _ in range(2):
        sent = client.post(f"/plans/{plan['id']}/measure", data=fields, headers=HTML, follow_redirects=False)
        assert (sent.status_code, sent.headers["location"]) == (303, runs_path(plan))
    (run,) = client.get(runs_path(plan)).json()["items"]
    assert (run["peak_bytes"], run["counter"], run["step_s"], run["oom"]) == (68_000 * 2**20, "reserved", 9.5, False)
    for path in (runs_path(plan), f"/plans/{plan['id']}"):
        shown = client.get(path, headers=HTML).text
        assert "66.4 GiB" in shown
        assert "9.21 s" in shown
    assert "The fitted terms are calibrated by 1 run here. GPU memory is then" in client.get("/", headers=HTML).text
    client.post(f"/plans/{plan['id']}/measure", data={"oom": "yes", "peak": "", "counter": "reserved", "step": ""}, headers=HTML)
    assert client.get(runs_path(plan)).json()["items"][0]["oom"] is True


@pytest.mark.parametrize(
    ("fields", "name", "message"),
    [
        ({"peak": "61.2", "counter": "reserved"}, "peak", "61.2 is read as 61 bytes; add the unit, such as 61.2 GiB"),
        ({"peak": "lots"}, "peak", "is not a number"),
        ({"peak": "61.2 GiB", "counter": ""}, "counter", "without its counter"),
        ({"peak": "100 GiB", "counter": "device"}, "peak", "more than one h100-sxm-80gb"),
        ({"step": "0"}, "step", "step_s is 0"),
        ({"step": "fast"}, "step", "is not a number"),
        ({}, "peak", "nothing was measured"),
    ],
)
def test_the_form_comes_back_with_what_is_wrong(
    client: TestClient, plan: dict[str, Any], fields: dict[str, str], name: str, message: str
) -> None:
    """Beside its field, with what was typed; nothing is kept."""
    back = client.post(f"/plans/{plan['id']}/measure", data=fields, headers=HTML)
    assert back.status_code == 422
    assert "<title>Error: " in back.text
    beside = re.search(rf'id="run-{name}-e">([^<]*)<', back.text)
    assert beside is not None
    assert message in beside[1]
    assert all(f'value="{text}"' in back.text for text in fields.values() if text)
    assert client.get(runs_path(plan)).json()["items"] == []


def test_a_run_is_removed_on_the_page_with_the_token(client: TestClient, plan: dict[str, Any]) -> None:
    """Without it the list says what is missing."""
    run = client.post(runs_path(plan), json={"step_s": 9.5, "note": HOSTILE}).json()["id"]
    for token, message in (("", "the edit token is missing"), ("x", "not the plan&#39;s")):
        back = client.post(f"/plans/{plan['id']}/measure/remove", data={"run": run, "token": token}, headers=HTML)
        assert (back.status_code, message in back.text, HOSTILE in back.text) == (403, True, False)
    fields = {"run": run, "token": plan["edit_token"]}
    assert client.post(f"/plans/{plan['id']}/measure/remove", data=fields, headers=HTML).status_code == 200
    assert client.get(runs_path(plan)).json()["items"] == []
    other = {"origin": "https://evil.example"}
    for path in ("measure", "measure/remove"):
        assert client.post(f"/plans/{plan['id']}/{path}", data=fields, headers=HTML | other).status_code == 403


def test_the_accuracy_page_has_local_runs_without_naming_plans(client: TestClient, plan: dict[str, Any]) -> None:
    """Everyone who may plan reads it; plans have a scope of their own."""
    assert "No run was measured here yet" in client.get("/method/accuracy", headers=HTML).text
    client.post(runs_path(plan), json=peak_of(plan, 1.25) | {"step_s": 9.5, "note": "secret words"})
    client.post(runs_path(plan), json={"oom": True})
    page = client.get("/method/accuracy", headers=HTML).text
    assert "Runs measured here" in page
    assert "ran out of memory" in page
    assert "−20.0 %" in page or "-20.0 %" in page
    assert not [
        secret for secret in (plan["id"], "nightly", "secret words", "Llama-3.1-8B") if secret in page.partition("Runs measured here")[2]
    ]
    local = client.get("/method/accuracy", headers={"accept": "application/json"}).json()["local"]
    assert (local["runs"], [s["title"] for s in local["summaries"]]) == (2, ["GPU memory", "step time"])


def test_calibration_can_be_switched_off(settings: AppSettings) -> None:
    """By the operator: runs are kept and shown all the same."""
    with TestClient(create_app(settings.model_copy(update={"calibrate": False}))) as client:
        saved = client.post("/plans", json=EXAMPLE_REQUEST).json()
        assert client.post(runs_path(saved), json=peak_of(saved, 1.02)).status_code == 201
        assert len(client.get(runs_path(saved)).json()["items"]) == 1
        assert calibration(client)["says"] == "calibration is switched off"
        assert "calibrated by" not in client.get("/", headers=HTML).text


def test_keys_and_scopes(settings: AppSettings) -> None:
    """Posting and removing take write, listing takes read; idempotency keys are each client's own."""
    with keyed(settings) as client:
        everything = client.bearing()
        saved = client.post("/plans", json=EXAMPLE_REQUEST, headers=everything).json()
        path, run = runs_path(saved), {"step_s": 9.5}
        assert client.post(path, json=run, headers=client.bearing("plan", "read")).status_code == 403
        assert client.get(path, headers=client.bearing("plan", "write")).status_code == 403
        answers = [client.post(path, json=run, headers=client.bearing("write") | {"idempotency-key": "k"}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 201]
        assert len(client.get(path, headers=client.bearing("read")).json()["items"]) == 2
        assert client.post("/plan", json=EXAMPLE_REQUEST, headers=client.bearing("plan")).json()["calibration"]["runs"] == 2
