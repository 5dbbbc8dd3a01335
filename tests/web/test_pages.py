"""Pages as a browser gets them, without running a script."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.web import views
from app.web.charts import LABEL_WIDTHS
from app.web.schemas import EXAMPLE_REQUEST

ROOT = Path(__file__).resolve().parents[2]
HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
JSON = {"accept": "application/json"}
BASE = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "gpus_per_node": "8", "seq_len": "8192"}
CONFIG = """{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1024,
"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32000, "tie_word_embeddings": false,
"_name_or_path": "%s"}"""
HOSTILE = ("</script><script>alert(1)</script>", '"; rm -rf ~ #', "'\"><img src=x onerror=alert(1)>", "{{ 7 * 7 }}")


class Tags(HTMLParser):
    """Every start tag with its attributes, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def by_id(self, name: str) -> dict[str, str | None]:
        return next(attrs for _, attrs in self.tags if attrs.get("id") == name)


def get(client: TestClient, path: str = "/", **fields: str) -> Any:
    return client.get(path, params=fields, headers=HTML)


def safe(html: str) -> Tags:
    """The parsed page; it has no inline script, style or handler and loads nothing from elsewhere."""
    page = Tags(html)
    for tag, attrs in page.tags:
        assert tag != "style"
        assert tag != "script" or attrs.get("src") in ("/static/app.js", "/static/charts.js")
        assert not any(name == "style" or name.startswith("on") for name in attrs), (tag, attrs)
        for name in ("src", "action", "formaction"):
            assert str(attrs.get(name) or "/").startswith("/"), (tag, attrs)
        assert re.match(r"(/|#|https://)", str(attrs.get("href") or "/")), (tag, attrs)
    return page


def test_home_shows_the_form_and_the_worked_example(client: TestClient) -> None:
    """A first visit needs no input: the example of the API, answered, within 100 KB."""
    response = get(client)
    page = safe(response.text)
    assert response.status_code == 200
    assert len(response.content) < 100_000
    assert page.by_id("f-model")["value"] == "llama-3.1-8b"
    assert page.by_id("f-seq_len")["value"] == "8192"
    assert page.by_id("f-global_batch")["value"] == "64"
    assert re.search(r"\d+\.\d GiB of \d+\.\d GiB at its peak", page.text)
    for part in ("What binds", "GPU memory", "Ladder", "Alternatives", "Step time", "Files", "ds_config.json", "How sure", "Search"):
        assert part in page.text


def test_the_answer_is_that_of_the_api(client: TestClient) -> None:
    """The sentence, the ledger with exact bytes and the warnings are the document's."""
    document = client.post("/plan", json=EXAMPLE_REQUEST).json()
    page = Tags(get(client).text)
    assert document["summary"].partition(": ")[2] in page.text
    for term in document["recommended"]["memory"]["gpu"]["terms"]:
        assert f"{term['formula']} = {term['bytes']:,} bytes" in page.text
    for warning in document["warnings"]:
        assert warning["message"] in page.text
    for rung in document["ladder"]:
        assert rung["why_not"] in page.text


def test_bars_stay_inside_their_chart(client: TestClient) -> None:
    """Segments of the memory bar follow each other, end before the edge and carry a text alternative."""
    html = get(client).text
    chart = html[html.index('aria-labelledby="mem-t') : html.index("</svg>", html.index('class="limit"'))]
    segments = [(float(x), float(w)) for x, w in re.findall(r'<rect[^>]* x="([\d.]+)%"[^>]* width="([\d.]+)%"', chart)]
    assert len(segments) >= 4
    ends = [0.0, *(x + width for x, width in segments)]
    assert [x for x, _ in segments] == pytest.approx(ends[:-1], abs=0.05)
    assert ends[-1] <= 100
    assert "<title" in chart
    assert "parameters" in chart[chart.index("<desc") : chart.index("</desc>")]


def test_state_is_in_the_address(client: TestClient) -> None:
    """The link to a plan gives the same answer again."""
    page = Tags(get(client, **BASE, micro_batch="2", strategy="zero3", fused_loss="true").text)
    link = next(str(attrs["href"]) for tag, attrs in page.tags if tag == "link" and attrs.get("rel") == "canonical")
    again = Tags(client.get(link, headers=HTML).text)
    assert again.by_id("f-micro_batch")["value"] == "2"
    assert ("option", {"value": "zero3", "selected": None}) in again.tags
    assert "micro-batch 2 ×" in again.text


def test_empty_fields_of_a_plain_form_are_nothing(client: TestClient) -> None:
    """Without a script the browser sends every field, most of them empty."""
    inputs = [attrs for tag, attrs in Tags(get(client).text).tags if tag in ("input", "select", "textarea")]
    names = [attrs["name"] for attrs in inputs if str(attrs.get("id")).startswith("f-")]
    empty = {str(name): "" for name in names}
    assert len(empty) > 60
    assert get(client, **(empty | BASE)).status_code == 200


def test_errors_stand_beside_their_fields(client: TestClient) -> None:
    """422, the title starts with Error, the summary links to the field, which keeps what was typed."""
    response = get(client, **(BASE | {"seq_len": "lots", "nodes": "0"}))
    page = safe(response.text)
    assert response.status_code == 422
    assert "<title>Error: " in response.text
    field = page.by_id("f-seq_len")
    assert field["value"] == "lots"
    assert field["aria-invalid"] == "true"
    assert "e-seq_len" in str(field["aria-describedby"]).split()
    assert page.by_id("e-seq_len")["class"] == "error"
    assert {"#f-seq_len", "#f-nodes"} <= {attrs.get("href") for _, attrs in page.tags}
    assert "is not a number" in page.text


def test_errors_of_the_planner_stand_beside_their_fields_too(client: TestClient) -> None:
    """What only looking up or planning finds: an unknown GPU, a degree that does not divide."""
    unknown = get(client, **(BASE | {"gpu": "h1000"}))
    assert unknown.status_code == 422
    assert Tags(unknown.text).by_id("f-gpu")["aria-invalid"] == "true"
    degree = get(client, **BASE, tensor_parallel="3")
    assert degree.status_code == 422
    page = Tags(degree.text)
    assert page.by_id("f-tensor_parallel")["value"] == "3"
    assert "does not divide the 8 GPUs" in page.text
    wrong = [str(attrs["id"]) for _, attrs in page.tags if attrs.get("aria-invalid")]
    assert len(wrong) == 1
    assert f"#{wrong[0]}" in {attrs.get("href") for _, attrs in page.tags}


def test_unknown_fields_are_named(client: TestClient) -> None:
    """Refused as in the API, with the nearest name."""
    response = get(client, **BASE, micro_bach="2")
    assert response.status_code == 422
    assert "there is no field 'micro_bach'; did you mean micro_batch?" in Tags(response.text).text


def test_what_does_not_fit_is_an_answer_with_ways_out(client: TestClient) -> None:
    """200, how far off, and links that set the form; following one that fits gives an answer that fits."""
    response = get(client, **(BASE | {"model": "llama-3.1-70b"}), strategy="zero1")
    page = safe(response.text)
    assert response.status_code == 200
    assert response.text.count("Does not fit") >= 2
    assert "short by" in page.text
    ways = re.findall(r'<a class="button" href="(/\?[^"]+)">[^<]+</a> <span class="note">fits', response.text)
    assert ways
    assert "verdict does_not_fit large" not in client.get(ways[0].replace("&amp;", "&"), headers=HTML).text


def test_a_pasted_config_is_posted(client: TestClient) -> None:
    """The answer is for the config; ways to go on are buttons that send it again, as no address could hold it."""
    fields = {**BASE, "config": CONFIG % "mine"}
    response = client.post("/", data=fields, headers=HTML)
    page = safe(response.text)
    assert response.status_code == 200
    assert "mine · seq 8,192" in page.text
    assert not [attrs for tag, attrs in page.tags if tag == "link" and attrs.get("rel") == "canonical"]
    change = next(str(attrs["value"]) for tag, attrs in page.tags if tag == "button" and attrs.get("name") == "change")
    pinned = client.post("/", data=fields | {"change": change, "name": "", "note": "", "key": "k"}, headers=HTML)
    assert pinned.status_code == 200
    assert "mine · seq 8,192" in Tags(pinned.text).text


def test_files_are_downloaded_without_a_script(client: TestClient) -> None:
    """From the query, and from a posted form, each as the API gives it."""
    wanted = client.post("/plan/ds_config.json", json=EXAMPLE_REQUEST)
    link = re.search(r'href="(/download/ds_config.json\?[^"]+)"', get(client).text)
    assert link
    got = client.get(link[1].replace("&amp;", "&"))
    assert got.content == wanted.content
    assert got.headers["content-disposition"] == 'attachment; filename="ds_config.json"'
    assert client.post("/download/launch.sh", data={**BASE, "config": CONFIG % "mine"}).status_code == 200
    assert get(client, "/download/launch.sh", **(BASE | {"seq_len": "lots"})).status_code == 422
    assert get(client, "/download/passwd", **BASE).status_code == 422


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text(client: TestClient, text: str) -> None:
    """In every field, name and file of every page it is shown as typed and does nothing."""
    refused = get(client, **(BASE | {"model": text, "seq_len": text}))
    assert text in safe(refused.text).text or refused.status_code == 422
    assert safe(refused.text).by_id("f-model")["value"] == text
    config = CONFIG % text.replace('"', '\\"')
    answered = client.post("/", data={**BASE, "config": config}, headers=HTML)
    assert f"{text} · seq" in safe(answered.text).text
    kept = client.post("/save", data={**BASE, "config": config, "name": text, "note": text}, headers=HTML)
    assert kept.status_code == 201
    for path in (kept.headers["location"], "/plans"):
        assert text in safe(client.get(path, headers=HTML).text).text
    assert safe(get(client, "/plans", q=text).text).by_id("q")["value"] == text
    safe(get(client, "/" + text.replace("/", "")).text)


def test_save_shows_the_token_once(client: TestClient) -> None:
    """201 with the token; the page afterwards and its JSON do not have it; the token deletes."""
    kept = client.post("/save", data={**BASE, "name": "first", "note": "a note"}, headers=HTML)
    assert kept.status_code == 201
    assert kept.headers["cache-control"] == "no-store"
    token = re.search(r'id="token">([^<]+)<', kept.text)
    assert token
    where = kept.headers["location"]
    page = client.get(where, headers=HTML)
    assert token[1] not in page.text
    assert "a note" in Tags(page.text).text
    document = client.get(where, headers=JSON).json()
    assert (document["id"], document["name"]) == (where.rpartition("/")[2], "first")
    assert "edit_token" not in document
    assert client.delete(where, headers={"edit-token": token[1]}).status_code == 204
    assert get(client, where).status_code == 404


def test_a_reload_saves_once(client: TestClient) -> None:
    """The key in the form makes a second send of the same form find the first plan."""
    tags = Tags(get(client, **BASE).text).tags
    fields = {**BASE, "name": "once", "key": next(str(attrs["value"]) for _, attrs in tags if attrs.get("name") == "key")}
    first, second = (client.post("/save", data=fields, headers=HTML) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.headers["location"] == second.headers["location"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 201),
        ({"sec-fetch-site": "same-origin"}, 201),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "http://testserver"}, 201),
        ({"origin": "https://elsewhere.example"}, 403),
        ({"origin": "null"}, 403),
    ],
)
def test_only_own_pages_save(client: TestClient, headers: dict[str, str], status: int) -> None:
    """A form on another site cannot save here."""
    assert client.post("/save", data=BASE, headers=HTML | headers).status_code == status


def test_a_save_with_errors_is_the_form_again(client: TestClient) -> None:
    """Nothing is stored, and what was typed is kept."""
    response = client.post("/save", data=BASE | {"seq_len": "lots"}, headers=HTML)
    assert response.status_code == 422
    assert Tags(response.text).by_id("f-seq_len")["value"] == "lots"
    assert client.get("/plans").json()["items"] == []


def test_saved_plans_are_listed_searched_and_paged(client: TestClient) -> None:
    """Newest first; search by name, model and GPU; the next page is a link."""
    assert "Nothing is saved yet" in get(client, "/plans").text
    for name in ("alpha", "beta", "gamma"):
        client.post("/save", data={**BASE, "name": name})
    first = get(client, "/plans", limit="2")
    assert [name for name in ("gamma", "beta", "alpha") if name in Tags(first.text).text] == ["gamma", "beta"]
    after = re.search(r'rel="next" href="([^"]+)"', first.text)
    assert after
    assert "alpha" in client.get(after[1].replace("&amp;", "&"), headers=HTML).text
    assert [item["name"] for item in client.get("/plans", params={"q": "BETA llama h100"}).json()["items"]] == ["beta"]
    assert "No saved plan has these words" in get(client, "/plans", q="delta").text
    assert client.get("/plans", params={"nmae": "x"}, headers=JSON).status_code == 422


@pytest.mark.parametrize("path", ["/", "/plans", "/catalog", "/catalog/gpus", "/catalog/instances", "/catalog/models"])
def test_every_page_has_a_json_twin(client: TestClient, path: str) -> None:
    """The same address, chosen by Accept, and caches are told so."""
    page, document = get(client, path), client.get(path, headers=JSON)
    assert page.headers["content-type"].startswith("text/html")
    assert document.headers["content-type"] == "application/json"
    assert page.status_code == document.status_code == 200
    assert "Accept" in page.headers["vary"]
    assert "Accept" in document.headers["vary"]
    safe(page.text)


def test_the_json_twin_of_the_form(client: TestClient) -> None:
    """The plan itself, or the problem with the paths of the request."""
    assert client.get("/", params=BASE, headers=JSON).json()["verdict"] in ("fits", "tight")
    refused = client.get("/", params=BASE | {"seq_len": "lots"}, headers=JSON)
    assert refused.status_code == 422
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["errors"][0]["loc"] == ["training", "seq_len"]


def test_catalogue_tables_show_figures_and_sources(client: TestClient) -> None:
    """Usable memory beside the label, and every source a row names is explained on the page."""
    html = get(client, "/catalog/gpus").text
    assert "h100-sxm-80gb" in html
    assert set(re.findall(r'href="#(source-[^"]+)"', html)) <= set(re.findall(r'id="(source-[^"]+)"', html))
    assert get(client, "/catalog/cars").status_code == 422


def test_links_of_the_catalogue_lead_to_answers(client: TestClient) -> None:
    """The first of each kind."""
    for kind in ("gpus", "instances", "models"):
        link = re.search(r'href="(/\?[^"]+)"', get(client, f"/catalog/{kind}").text)
        assert link
        assert client.get(link[1].replace("&amp;", "&"), headers=HTML).status_code == 200


def test_problems_are_pages_for_browsers(client: TestClient) -> None:
    """Status and words, the way back, and JSON for everyone else."""
    response = get(client, "/nothing/here")
    page = safe(response.text)
    assert response.status_code == 404
    assert "<title>Error: Not Found" in response.text
    assert "there is nothing at /nothing/here" in page.text
    assert get(client, "/plans/nosuchplan").status_code == 404
    assert client.get("/nothing/here").headers["content-type"] == "application/problem+json"


def test_reference_lists_every_route_and_field(client: TestClient) -> None:
    """Made from the OpenAPI document, complete, with a line for the shell; nothing from elsewhere."""
    page = safe(get(client, "/docs").text)
    document = client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in page.text
    for name in document["components"]["schemas"]["TrainingIn"]["properties"]:
        assert name in page.text
    assert "curl 'http://testserver/plan' -H 'Content-Type: application/json' -d '{\"model\":" in page.text
    ids = {attrs.get("id") for _, attrs in page.tags}
    assert {str(attrs["href"])[1:] for _, attrs in page.tags if str(attrs.get("href", "")).startswith("#")} <= ids


def test_every_label_has_its_input_and_every_description_exists(client: TestClient) -> None:
    """What a screen reader is pointed at is there, also on a page with errors."""
    for html in (get(client).text, get(client, **(BASE | {"seq_len": "x"})).text):
        page = Tags(html)
        ids = [str(attrs["id"]) for _, attrs in page.tags if attrs.get("id")]
        assert len(ids) == len(set(ids))
        for tag, attrs in page.tags:
            assert tag != "label" or attrs["for"] in ids
            for name in str(attrs.get("aria-describedby") or "").split() + str(attrs.get("aria-labelledby") or "").split():
                assert name in ids


def test_templates_hold_no_arithmetic_and_switch_no_escaping_off() -> None:
    """Figures come formatted; nothing is marked safe."""
    for path in (ROOT / "templates").rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "|safe" not in text.replace(" ", "")
        assert "autoescape" not in text


def test_static_files_are_served(client: TestClient) -> None:
    """One stylesheet, one script, one icon; the stylesheet fetches nothing."""
    for path, kind in (("/static/app.css", "text/css"), ("/static/app.js", "javascript"), ("/static/icon.svg", "image/svg+xml")):
        response = client.get(path)
        assert response.status_code == 200
        assert kind in response.headers["content-type"]
    css = client.get("/static/app.css").text
    assert "url(" not in css
    assert set(re.findall(r"from-(\d+)", css)) == {str(width) for width in LABEL_WIDTHS}


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (("none", "none"), "none"),
        (("cpu", "cpu"), "all on cpu"),
        (("nvme", "none"), "optimizer on nvme"),
        (("nvme", "cpu"), "optimizer on nvme, weights on cpu"),
    ],
)
def test_offload_is_said_in_few_words(places: tuple[str, str], words: str) -> None:
    """The column of the alternatives stays narrow enough for the table to be seen whole."""
    assert views.offloaded({"offload_optimizer": places[0], "offload_parameters": places[1]}) == words
