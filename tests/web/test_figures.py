"""Charts: valid specifications with the document's numbers, their tables and images, at addresses of saved and unsaved answers."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import altair
import pytest
from fastapi.testclient import TestClient

from app import ENGINE_VERSION
from app.domain.traffic.ideal import ideal_states_bytes
from app.domain.units import GIB
from app.services.plan import planned
from app.services.request import PlanRequest
from app.services.what_if import VARIABLES, curve
from app.web.figures import CURVES, NAMES, OF_DOCUMENT, Canvas, Figure, what_if
from app.web.figures.style import palette, themed
from app.web.forms import read_form
from app.web.schemas import EXAMPLE_REQUEST
from tests.web.test_pages import CONFIG

BASE = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "gpus_per_node": "8", "seq_len": "8192"}
QUERIES = {
    "example": BASE | {"global_batch": "64"},
    "one GPU": BASE | {"model": "llama-3.2-1b", "gpus_per_node": "1", "seq_len": "1024"},
    "nothing fits": BASE | {"model": "llama-3.1-70b", "strategy": "zero1"},
    "adapter, two nodes": BASE | {"nodes": "2", "adapter_kind": "qlora", "seq_len": "4096"},
    "offloaded": BASE | {"model": "llama-3.1-70b", "nodes": "2", "global_batch": "64"},
}
Answered = tuple[PlanRequest, dict[str, Any]]


@pytest.fixture(scope="module")
def answers() -> dict[str, Answered]:
    found = {}
    for name, fields in QUERIES.items():
        request = read_form(list(fields.items())).request
        assert request
        found[name] = (request, planned(request).document())
    return found


def figure_of(answered: Answered, name: str, px: int = 720) -> Figure:
    request, document = answered
    canvas = Canvas(px=px, links=[f"/?n={n}" for n in range(1 + len(document["alternatives"]))])
    if name in OF_DOCUMENT:
        return OF_DOCUMENT[name](document, canvas)
    return what_if(curve(request, document["recommended"]["settings"], CURVES[name]), canvas, engine_version=ENGINE_VERSION)


def layers(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every layer that draws something."""
    inner = [*spec.get("layer", []), *spec.get("vconcat", [])]
    yield from (layer for part in inner for layer in layers(part))
    if not inner:
        yield spec


def drawn(figure: Figure, kind: str) -> list[dict[str, Any]]:
    """Data of the first layer with a kind of mark."""
    found: list[dict[str, Any]] = next(layer["data"]["values"] for layer in layers(figure.spec) if layer["mark"]["type"] == kind)
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("answer", QUERIES)
def test_specifications_are_valid(answers: dict[str, Answered], answer: str, name: str) -> None:
    """By the schema of Vega-Lite 6, in every theme and on a phone; each has a title, a sentence and a table."""
    figure = figure_of(answers[answer], name)
    spec = themed(figure, "light") | {"$schema": "https://vega.github.io/schema/vega-lite/v6.json"}
    altair.Chart.from_dict(spec, validate=True)
    assert "@" not in re.sub(r"\d@\d", "", str(themed(figure, "auto")))
    assert figure.message.endswith(".")
    assert spec["description"] == figure.message
    assert spec["title"]["text"] == figure.title
    assert figure.table.rows
    assert {len(row) for row in figure.table.rows} == {len(figure.table.columns)}
    assert figure_of(answers[answer], name, px=328).table == figure.table


@pytest.mark.parametrize("name", NAMES)
def test_every_mark_has_a_name_or_is_hidden(answers: dict[str, Answered], name: str) -> None:
    """Points, bars and limits are described one by one, with their numbers; what only decorates is hidden from screen readers."""
    told = 0
    for layer in layers(figure_of(answers["example"], name).spec):
        field = layer["encoding"].get("description", {}).get("field")
        assert field or layer["mark"].get("aria") is False, layer["mark"]
        if field:
            assert all(re.search(r"\d", row[field]) for row in layer["data"]["values"])
            told += 1
    assert told


@pytest.mark.parametrize("answer", QUERIES)
def test_memory_is_the_documents(answers: dict[str, Answered], answer: str) -> None:
    """Segments add up to the device and to each moment, start at zero and touch; the line is the capacity."""
    figure = figure_of(answers[answer], "memory")
    gpu = answers[answer][1]["recommended"]["memory"]["gpu"]
    bars = drawn(figure, "bar")
    totals = {f"device, {gpu['peak_moment']}": gpu["device_bytes"]}
    totals |= {m["name"]: m["allocated_bytes"] for m in gpu["moments"] if m["allocated_bytes"]}
    assert {bar["moment"] for bar in bars} == set(totals)
    for moment, total in totals.items():
        mine = [bar for bar in bars if bar["moment"] == moment]
        assert sum(bar["bytes"] for bar in mine) == pytest.approx(total, abs=len(gpu["terms"]))
        assert [bar["from"] for bar in mine] == pytest.approx([0, *(bar["to"] for bar in mine[:-1])])
    for category in {term["category"] for term in gpu["terms"]}:
        there = sum(t["bytes"] for t in gpu["terms"] if t["category"] == category)
        here = sum(b["bytes"] for b in bars if b["key"] == category and b["moment"].startswith("device, "))
        assert here == there
    assert drawn(figure, "rule")[0]["at"] * GIB == pytest.approx(gpu["capacity_bytes"])


@pytest.mark.parametrize("answer", QUERIES)
def test_the_step_is_the_documents(answers: dict[str, Answered], answer: str) -> None:
    """Its parts add up to the step; hidden and exposed communication add up to what is sent."""
    figure = figure_of(answers[answer], "step")
    best = answers[answer][1]["recommended"]
    bars = drawn(figure, "bar")
    step = [bar for bar in bars if bar["row"] == "step"]
    assert sum(bar["seconds"] for bar in step) == pytest.approx(best["time"]["step_s"])
    parts = {bar["part"]: bar["seconds"] for bar in bars if bar["row"] == "communication"}
    sent = sum(term["seconds"] for term in best["communication"]["terms"])
    assert sum(parts.values()) == pytest.approx(max(sent, best["time"]["exposed_communication_s"]), rel=1e-6, abs=1e-9)
    assert parts.get("exposed communication", 0) == best["time"]["exposed_communication_s"]


@pytest.mark.parametrize("answer", QUERIES)
def test_alternatives_are_the_documents(answers: dict[str, Answered], answer: str) -> None:
    """A point a plan with its link; the recommended one has another shape; nothing lies above and left of the line."""
    figure = figure_of(answers[answer], "alternatives")
    document = answers[answer][1]
    points = {point["number"]: point for point in drawn(figure, "point")}
    for number, plan in enumerate([document["recommended"], *document["alternatives"]], 1):
        point = points.pop(number)
        assert point["bytes"] == plan["memory"]["gpu"]["device_bytes"]
        assert point["tokens_per_s_per_gpu"] == plan["time"]["tokens_per_s_per_gpu"]
        assert point["role"] == ("recommended" if number == 1 else "alternative")
        assert point["href"] == f"/?n={number - 1}"
    assert not points
    line = [(p["gib"], p["tokens_per_s_per_gpu"]) for p in drawn(figure, "line")]
    assert line == sorted(line)
    for point in drawn(figure, "point"):
        best = max((rate for gib, rate in line if gib <= point["gib"]), default=0)
        assert point["tokens_per_s_per_gpu"] <= best


def test_states_are_the_textbooks(answers: dict[str, Answered]) -> None:
    """16 bytes a trained parameter at one rank under each; at the plan's ranks the document's own figures."""
    document = answers["example"][1]
    points = drawn(figure_of(answers["example"], "states"), "line")
    params = document["model"]["trainable_params"]
    words = {"DDP": "ddp", "ZeRO-1": "zero1", "ZeRO-2": "zero2", "ZeRO-3": "zero3"}
    for point in points:
        assert point["bytes"] == ideal_states_bytes(params, point["ranks"])[words[point["line"]]]
    assert {p["bytes"] for p in points if p["ranks"] == 1} == {16 * params}
    here = {words[p["line"]]: p["bytes"] for p in points if p["ranks"] == 8}
    assert here == document["ideal"]["states_bytes"]


@pytest.mark.parametrize("variable", VARIABLES)
def test_curves_are_drawn_with_their_end(answers: dict[str, Answered], variable: str) -> None:
    """Points have the curve's figures, the plan's own is marked, and the line behind the last that fits is where the curve says."""
    request, document = answers["example"]
    found = curve(request, document["recommended"]["settings"], variable)  # type: ignore[arg-type]
    figure = figure_of(answers["example"], f"what-if-{variable}")
    points = drawn(figure, "point")
    assert [(p["value"], p["bytes"], p["tokens_per_s"]) for p in points] == [
        (p.value, p.device_bytes, p.tokens_per_s) for p in found.points
    ]
    assert [p["role"] == "fits" for p in points] == [p.fits for p in found.points]
    assert [p["value"] for p in points if p["here"]] == [found.at]
    ends = [layer["data"]["values"][0]["label"] for layer in layers(figure.spec) if layer["mark"]["type"] == "rule"]
    assert [end for end in ends if end.startswith("fits up to")] == [f"fits up to {n:,}" for n in [found.last_fit] if n] * 2


def test_colours_are_those_of_the_page() -> None:
    """Both schemes are read from the stylesheet: every category has a colour in each, and charts set on the page's ground."""
    light, dark = palette("light"), palette("dark")
    names = ("parameters", "gradients", "optimizer", "activations", "logits", "buffers", "adapters", "overhead", "compute", "communication")
    for name in (*names, "offload", "ink", "soft", "line", "bg", "primary", "fits", "bad"):
        assert light[name] != dark[name]
    assert light["bg"] == "#fbfbfa"
    assert dark["bg"] == "#14171b"


@pytest.mark.parametrize("name", NAMES)
def test_each_chart_is_there_in_each_form(client: TestClient, name: str) -> None:
    """JSON, SVG in three themes, PNG, CSV and a page, for the address of an answer and for the example where it has none."""
    query = urlencode(QUERIES["example"])
    spec = client.get(f"/charts/{name}.json?px=500&{query}").json()
    assert spec["usermeta"]["name"] == name
    assert spec["description"].endswith(".")
    assert client.get(f"/charts/{name}.json").json()["usermeta"]["table"] == spec["usermeta"]["table"]
    for theme in ("light", "dark", "auto"):
        image = client.get(f"/charts/{name}.svg?theme={theme}&px=500&{query}")
        assert image.headers["content-type"].startswith("image/svg+xml")
        assert "script-src" not in image.headers["content-security-policy"]
        root = ElementTree.fromstring(image.text)
        assert root.tag.endswith("svg")
        assert 440 <= float(root.attrib["width"]) <= 530
        assert ("prefers-color-scheme" in image.text) is (theme == "auto")
        assert root[0].text == spec["usermeta"]["message"]
    picture = client.get(f"/charts/{name}.png?{query}")
    assert picture.content.startswith(b"\x89PNG")
    table = list(csv.reader(io.StringIO(client.get(f"/charts/{name}.csv?{query}").text)))
    assert table[0] == list(spec["usermeta"]["table"]["columns"])
    assert len(table) == 1 + len(spec["usermeta"]["table"]["rows"])
    page = client.get(f"/charts/{name}.html?{query}", headers={"accept": "text/html"})
    assert page.status_code == 200
    assert spec["usermeta"]["message"].replace("'", "&#39;") in page.text
    assert page.text.count("<tr>") == len(table)


def test_what_is_not_there_is_named(client: TestClient) -> None:
    """404 with the names there are; bad fields are refused as in the form."""
    for path, word in (
        ("/charts/nothing.svg", "what-if-gpus"),
        ("/charts/memory.pdf", "json, svg, png"),
        ("/plans/x/charts/no.svg", "states"),
    ):
        refused = client.get(path)
        assert refused.status_code == 404
        assert word in refused.json()["detail"]
    assert client.get("/plans/none/charts/memory.svg").status_code == 404
    refused = client.get("/charts/memory.json?" + urlencode(BASE | {"seq_len": "lots"}))
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["loc"] == ["training", "seq_len"]
    assert client.get("/charts/memory.json?px=3").status_code == 422
    assert client.get("/charts/memory.json?theme=blue").status_code == 422


def test_a_pasted_config_is_posted(client: TestClient) -> None:
    """Too long for an address, it gets its specifications by a post, without links to plans; the page says how to get images."""
    fields = BASE | {"config": CONFIG % "mine", "name": "", "note": "", "key": "k"}
    spec = client.post("/charts/alternatives.json", data=fields).json()
    assert spec["usermeta"]["name"] == "alternatives"
    assert '"href": "/?' not in str(spec)
    page = client.post("/", data=fields, headers={"accept": "text/html"})
    assert "/charts/states.json" in page.text
    assert "/charts/states.svg" not in page.text
    assert "Save the plan to get images" in page.text


def test_charts_of_a_saved_plan_never_change(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are drawn from the answer as it was, whatever the engine says today; curves are today's and say so."""
    plan = client.post("/plans", json=EXAMPLE_REQUEST | {"name": "one"}).json()["id"]
    before = {name: client.get(f"/plans/{plan}/charts/{name}.json").json() for name in NAMES}
    monkeypatch.setattr("app.web.chart_pages.ENGINE_VERSION", "9.9.9")
    monkeypatch.setattr("app.web.chart_pages.planned", lambda *_: pytest.fail("a saved plan is not planned again"))
    for name in OF_DOCUMENT:
        assert client.get(f"/plans/{plan}/charts/{name}.json").json() == before[name]
        unsaved = client.get(f"/charts/{name}.json?unknown=1")
        assert unsaved.status_code == 422
    for name in CURVES:
        now = client.get(f"/plans/{plan}/charts/{name}.json").json()
        assert f"Computed by engine 9.9.9, the plan was saved under {ENGINE_VERSION}." in now["usermeta"]["message"]
        assert "Computed by" not in before[name]["usermeta"]["message"]
        assert now["usermeta"]["engine_version"] == "9.9.9"
    for kind in ("svg", "png", "csv", "html"):
        assert client.get(f"/plans/{plan}/charts/memory.{kind}").status_code == 200


def test_controls_lead_to_the_plan_they_name(client: TestClient) -> None:
    """Only what was changed is set; a batch stays; GPUs become nodes; what makes no sense is refused with the fix."""
    html = client.get("/?" + urlencode(QUERIES["example"]), headers={"accept": "text/html"}).text
    state = re.findall(r'<option value="([^"]+)">as they are', html)[0].replace("&amp;", "&")
    at = re.findall(r'name="at" value="([^"]+)"', html)[0]
    assert at == "8192,1,8,8"

    def go(**changed: str) -> str:
        sent = {"state": state, "at": at, "seq_len": "8192", "micro_batch": "1", "gpus": "8"} | changed
        answer = client.get("/what-if", params=sent, follow_redirects=False)
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])

    longer = client.get(go(seq_len="16k"), headers={"accept": "application/json"}).json()["recommended"]["settings"]
    assert (longer["seq_len"], longer["micro_batch"], longer["grad_accum"]) == (16384, 1, 8)
    asked = client.get(go(micro_batch="2"), headers={"accept": "application/json"}).json()
    settings = asked["recommended"]["settings"]
    assert (settings["micro_batch"], settings["grad_accum"], settings["global_batch"]) == (2, 4, 64)
    more = client.get(go(gpus="16"), headers={"accept": "application/json"}).json()["recommended"]["settings"]
    assert (more["nodes"], more["gpus_per_node"], more["strategy"]) == (2, 8, settings["strategy"])
    less = client.get(go(gpus="4"), headers={"accept": "application/json"}).json()["recommended"]["settings"]
    assert (less["nodes"], less["gpus_per_node"]) == (1, 4)
    refused = client.get("/what-if", params={"state": state, "at": at, "gpus": "12"})
    assert refused.status_code == 422
    assert "use 8 or 16" in refused.json()["errors"][0]["hint"]
    assert client.get(go(seq_len="lots"), headers={"accept": "text/html"}).status_code == 422


def test_no_answer_from_a_curve_is_a_problem_with_words(client: TestClient) -> None:
    """A request of another time that today's engine does not take is a conflict, as in replanning."""
    plan = client.post("/plans", json=EXAMPLE_REQUEST).json()["id"]
    saved = client.app.state.saved_plans  # type: ignore[attr-defined]
    kept = saved.get(plan)
    saved.get = lambda _: type(kept)(**{f: getattr(kept, f) for f in kept.__dataclass_fields__} | {"request": {"old": 1}})
    answer = client.get(f"/plans/{plan}/charts/what-if-gpus.json")
    assert answer.status_code == 409
    assert "does not take it" in answer.json()["detail"]
