"""The verdict of a form that is still being filled in, and refusals of the API in the browser: the same, beside the field."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import AppSettings
from app.web.fields import all_fields
from app.web.forms import field_at, read_form, to_fields
from tests.contract import test_bounds, test_plan_api
from tests.web.test_pages import BASE, CONFIG, HTML, Tags, get

WHAT_A_FORM_CANNOT_SAY = (
    ["training", "seq_length"],  # it has no such field; another name in the address is refused by name
    ["cluster", "pools"],  # an empty list of pools: a form always has one
)
TWO_MODELS = {"preset": "llama-3.1-8b", "params": 1e9}
"""The form takes the number then, as its label says."""
BOUNDS = next(mark.args[1] for mark in test_bounds.test_what_is_too_large_is_refused_at_its_field.pytestmark if mark.name == "parametrize")
REFUSED = [(body, loc) for body, loc, _ in test_plan_api.BAD] + [(body, loc) for body, loc in BOUNDS]
REFUSED = [(body, loc) for body, loc in REFUSED if loc not in WHAT_A_FORM_CANNOT_SAY and body["model"] != TWO_MODELS]


@pytest.mark.parametrize(("body", "loc"), REFUSED, ids=[f"{n}-{loc[-1]}" for n, (_, loc) in enumerate(REFUSED)])
def test_what_the_api_refuses_the_form_refuses(client: TestClient, body: dict[str, Any], loc: list[str | int]) -> None:
    """With the same words at the field, what was typed kept, in the page, in the preview and in the page's JSON."""
    problem = client.post("/plan", json=body).json()["errors"]
    fields = to_fields(body)
    page = client.post("/", data=fields, headers=HTML)
    name = field_at(tuple(problem[0]["loc"]))
    tags = Tags(page.text)
    assert page.status_code == 422
    assert tags.by_id(f"f-{name}")["aria-invalid"] == "true"
    assert f"e-{name}" in str(tags.by_id(f"f-{name}")["aria-describedby"])
    assert name == "config" or name not in fields or fields[name] in (tags.by_id(f"f-{name}").get("value"), chosen(tags, fields[name]))
    said = client.post("/preview", data=fields).json()
    assert said["verdict"] is None
    assert list(said["errors"]) == [field_at(tuple(error["loc"])) for error in problem]
    assert same_rule(problem[0], said["errors"][name][0])
    twin = client.post("/", data=fields, headers={"accept": "application/json"})
    assert twin.status_code == 422
    assert "Traceback" not in page.text + twin.text


def chosen(tags: Tags, value: str) -> str:
    """The value, where an option with it is selected."""
    return value if any(tag == "option" and attrs.get("value") == value and "selected" in attrs for tag, attrs in tags.tags) else ""


def same_rule(error: dict[str, Any], said: str) -> bool:
    """The form says what the API does; where it reads text as a number itself, it shows how to write one."""
    rule = error["msg"].split("; ")[-1].removeprefix(str(error["loc"][-1]))
    return rule in said or "write one such as" in said or "must be an object in braces" in said


@pytest.mark.parametrize(
    "name", [name for name, field in all_fields().items() if field.kind not in ("text", "choice", "flag", "json", "names")]
)
def test_numbers_are_read_everywhere_or_refused_with_the_rule(name: str) -> None:
    """Separators are read; words are refused with what was given and how to write it, at that field."""
    field = all_fields()[name]
    good = "4,8,8" if field.kind == "triple" else "0.5" if field.kind == "frac" else "1,000"
    form = read_form([*(BASE | {name: good}).items()])
    assert [error for error in form.errors if error.field == name and "write" in error.msg] == []
    wrong = [error for error in read_form([*(BASE | {name: "about ten"}).items()]).errors if error.field == name]
    assert len(wrong) == 1
    assert "'about ten'" in wrong[0].msg
    assert "write" in wrong[0].msg


@pytest.mark.parametrize(
    ("name", "typed", "path", "meant"),
    [
        ("seq_len", "8k", ("training", "seq_len"), 8192),
        ("global_batch", "4,096", ("training", "global_batch"), 4096),
        ("headroom_frac", "1e-1", ("headroom_frac",), 0.1),
        ("gpu_memory_gib", "80 GiB", ("cluster", "pools", 0, "gpu_memory_gib"), 80),
        ("nvme_gb", "28 TB", ("cluster", "pools", 0, "nvme_gb"), 28000),
        ("trainable_params", "1.2B", ("training", "trainable_params"), 1.2e9),
        ("custom_memory_gib", "47.5 GiB", ("cluster", "pools", 0, "gpu", "memory_gib"), 47.5),
    ],
)
def test_numbers_mean_what_people_write(name: str, typed: str, path: tuple[str | int, ...], meant: float) -> None:
    """In the field's own unit, or with one."""
    more = {"custom_bf16_tflops": "300", "custom_hbm_gb_per_s": "2,000"} if name.startswith("custom") else {}
    form = read_form([*(BASE | more | {name: typed}).items()])
    assert form.errors == ()
    assert form.request is not None
    value: Any = form.request.model_dump()
    for part in path:
        value = value[part]
    assert value == pytest.approx(meant)


def test_the_preview_is_the_verdict_of_the_plan(client: TestClient) -> None:
    """Same figures as the answer; nothing is counted as a plan, and no file is written."""
    before = client.get("/metrics").text
    said = client.get("/preview", params=BASE).json()
    after = client.get("/metrics").text
    plan = client.post("/plan", json=read_form(BASE.items()).request.model_dump(mode="json")).json()  # type: ignore[union-attr]
    assert said["verdict"] == plan["verdict"]
    line = Tags(said["line"]).text
    assert "Fits" in line
    used = plan["recommended"]["memory"]["gpu"]["device_bytes"] / 2**30
    assert f"{used:.1f} of " in line
    assert [row for row in before.splitlines() if row.startswith("shardplan_plans")] == [
        row for row in after.splitlines() if row.startswith("shardplan_plans")
    ]
    too_big = client.get("/preview", params=BASE | {"model": "llama-3.1-70b", "strategy": "zero1"}).json()
    assert too_big["verdict"] == "does_not_fit"
    assert "GiB too much" in Tags(too_big["line"]).text


def test_folklore_is_corrected_where_it_is_typed(client: TestClient) -> None:
    """Parameter offload below stage 3: beside the field in the preview and, without a script, in the page."""
    fields = BASE | {"strategy": "zero2", "offload_optimizer": "cpu", "offload_parameters": "cpu"}
    notes = client.get("/preview", params=fields).json()["notes"]
    assert "only at stage 3" in notes["offload_parameters"][0]
    page = Tags(get(client, **fields).text)
    assert page.by_id("n-offload_parameters")["class"] == "tip"
    assert "n-offload_parameters" in str(page.by_id("f-offload_parameters")["aria-describedby"])
    assert "offload_parameters" not in client.get("/preview", params=fields | {"strategy": "zero3"}).json()["notes"]


def test_a_clip_replaces_the_length_and_says_its_tokens(client: TestClient) -> None:
    """Frames, height and width over the strides and the patch."""
    fields = BASE | {"model": "wan2.1-t2v-1.3b", "frames": "81", "height": "720", "width": "1,280"}
    assert client.get("/preview", params=fields).json()["notes"]["frames"] == ["This clip has 75,600 tokens."]
    page = get(client, **fields)
    assert page.status_code == 200
    assert "seq 75,600" in page.text
    assert "This clip has 75,600 tokens." in page.text


def test_names_are_fetched_when_asked_for_only(settings: AppSettings) -> None:
    """Half a name that is being typed asks nobody; the form says whether this server fetches at all."""
    with TestClient(create_app(settings.model_copy(update={"fetch_models": True, "hub_url": "http://127.0.0.1:9"}))) as client:
        said = client.get("/preview", params=BASE | {"model": "someone/unknow"}).json()
        assert said == {"verdict": None, "line": "someone/unknow is fetched when you press Plan.", "errors": {}, "notes": {}}
        assert "whose config.json is fetched" in client.get("/", headers=HTML).text


def test_the_preview_of_nothing_and_of_nonsense(client: TestClient) -> None:
    """200 with what is missing; text is text."""
    assert set(client.get("/preview").json()["errors"]) == {"model", "gpu", "seq_len"}
    hostile = client.post("/preview", data=BASE | {"seq_len": "<img src=x onerror=alert(1)>"}).json()
    assert "<img" not in hostile["line"]
    assert "&lt;img" in hostile["line"]
    assert client.post("/preview", data=BASE | {"config": CONFIG % "mine"}).json()["verdict"] in ("fits", "tight")
    assert client.post("/preview", data=BASE | {"change": "%zz", "pools": "lots"}).json()["errors"][""]


def test_pools_are_added_and_dropped_in_the_address(client: TestClient) -> None:
    """An empty row changes nothing; a dropped pool leaves those after it; eight is the most."""
    page = Tags(get(client, **BASE, pools="3").text)
    assert page.by_id("f-gpu3")["autofocus"] is None
    assert "autofocus" not in page.by_id("f-gpu2")
    fields = BASE | {"gpu2": "t4", "nodes2": "2", "gpu3": "l40s", "gpus_per_node3": "4"}
    form = read_form([*fields.items(), ("drop", "2")])
    assert form.request is not None
    assert [(pool.gpu, pool.gpus_per_node, pool.nodes) for pool in form.request.cluster.pools] == [("h100-sxm-80gb", 8, 1), ("l40s", 4, 1)]
    assert "Add a pool" not in get(client, **BASE, pools="8").text
    assert get(client, **BASE, pools="9").status_code == 422


def test_a_config_file_is_uploaded(client: TestClient) -> None:
    """Without a script; its text is in the field afterwards, and a name without content is said."""
    sent = client.post("/", data=BASE, files={"config_file": ("config.json", (CONFIG % "mine").encode())}, headers=HTML)
    assert "mine · seq 8,192" in Tags(sent.text).text
    assert '"_name_or_path": "mine"' in Tags(sent.text).text
    nothing = client.post("/", data=BASE, files={"config_file": ("", b"")}, headers=HTML)
    assert nothing.status_code == 200
    name_only = get(client, **BASE, config_file="config.json")
    assert name_only.status_code == 422
    assert Tags(name_only.text).by_id("f-config")["aria-invalid"] == "true"
    broken = client.post("/", data=BASE, files={"config_file": ("config.json", b'{"a": "\xff"}')}, headers=HTML)
    assert "not UTF-8" in broken.text
