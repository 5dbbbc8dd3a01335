"""The method pages: whole, true to the models they are made from, linked, and the same as JSON."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient

from app.catalog.claims import claim_topics, load_claims
from app.catalog.data import document
from app.catalog.keys import load_keys
from app.domain.memory.moments import MOMENTS
from app.domain.parallel.deepspeed_names import COUNTERPARTS
from app.domain.parallel.fsdp_names import CALLS, KEYS, SHARDINGS
from app.domain.parallel.strategy import STRATEGIES
from app.domain.sources import SOURCES
from app.services.method.citing import cited_by_catalogue
from app.services.method.evidence import EVIDENCE, evidence_of
from app.services.method.examples import EXAMPLES, work
from app.services.method.figures import all_cards, figures
from app.services.method.lives import life, lives, slug_of
from app.web.method.pages import READING
from app.web.method.rooms import ROOMS, alive_words, href, room_of
from tests.web.test_pages import HTML, JSON, Tags, safe

PAGES = ("", *(f"/{name}" for name in (*ROOMS, *READING, "accuracy")), *(f"/strategies/{slug_of(s)}" for s in STRATEGIES))
SLUGS = [slug_of(s) for s in STRATEGIES]


def fetched(client: TestClient, path: str) -> Any:
    return client.get(f"/method{path}", headers=HTML)


def as_json(client: TestClient, path: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/method{path}", headers=JSON).json()
    return found


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_safe_light_and_have_twins(client: TestClient, path: str) -> None:
    """No inline script or style, at most 100 KB, one heading of the first level, tables with captions, and the same as JSON."""
    response, twin = fetched(client, path), client.get(f"/method{path}", headers=JSON)
    page = safe(response.text)
    assert response.status_code == twin.status_code == 200
    assert twin.headers["content-type"] == "application/json"
    assert "Accept" in response.headers["vary"] and "Accept" in twin.headers["vary"]
    assert twin.json()
    assert len(response.content) <= 100_000
    names = [tag for tag, _ in page.tags]
    assert names.count("h1") == 1
    assert names.count("table") == names.count("caption")
    assert all(attrs.get("scope") for tag, attrs in page.tags if tag == "th")
    ids = [attrs["id"] for _, attrs in page.tags if attrs.get("id")]
    assert len(ids) == len(set(ids))
    assert "built-in" not in page.text


def test_every_card_is_once_on_its_page(client: TestClient) -> None:
    """Each with its equation, and with the numbers of an example put in that give the figure beside them."""
    shown: list[tuple[str, str]] = []
    for name in ROOMS:
        cards = [card for part in as_json(client, f"/{name}")["parts"] for card in part["cards"]]
        shown += [(name, card["id"]) for card in cards]
        text = fetched(client, f"/{name}").text
        for card in cards:
            assert text.count(f'<section class="term" id="{card["id"]}">') == 1
            assert card["sentence"] and card["equation"] and card["source"]["title"]
            assert re.search(r"\d", card["formula"])
    assert sorted(shown) == sorted((room_of(key), key.rsplit(".", 1)[1]) for key in all_cards())


def test_the_ledger_says_what_the_engine_says() -> None:
    """Figures at the peak of a worked example are those of its plan."""
    gpu = work("zero3").candidate.gpu
    at_peak = {term.name: term for term in gpu.terms}
    same = [f for key, f in figures().items() if f.example == "zero3" and f.place == "gpu" and all_cards()[key].title in at_peak]
    assert len(same) > 8
    for key, figure in figures().items():
        if figure in same and all(share == 1 for _, share in figure.alive) and key != "memory.buffers.bucket_bytes":
            assert at_peak[all_cards()[key].title].value == round(figure.value)


def test_no_example_is_without_use() -> None:
    """Each is there because some term is shown with it, and says what it is."""
    used = {figure.example for figure in figures().values()}
    assert {example.key for example in EXAMPLES} == used
    assert len({example.title for example in EXAMPLES}) == len(EXAMPLES)


@pytest.mark.parametrize("slug", SLUGS)
def test_a_life_adds_up_to_the_memory_model(client: TestClient, slug: str) -> None:
    """At every moment what is alive sums to the bytes the memory model has there, on the page as in the model."""
    one = life(slug)
    memory, place = one.worked.evaluation.memory, one.worked.place
    assert STRATEGIES[int(one.worked.evaluation.columns.row[place])] is one.strategy
    view = as_json(client, f"/strategies/{slug}")
    assert [m["key"] for m in view["moments"]] == list(MOMENTS)
    for row, (moment, shown) in enumerate(zip(one.moments, view["moments"], strict=True)):
        total = float(memory.by_moment[row, place])
        assert sum(term.value for term in moment.held) == pytest.approx(total, rel=1e-12)
        assert shown["bytes"] == round(total)
        assert sum(term["bytes"] for term in shown["held"]) == pytest.approx(total, abs=len(shown["held"]))
        assert sum(s["width"] for s in shown["bar"]) <= 100.1
    assert view["peak"] == MOMENTS[int(memory.moment[place])]


@pytest.mark.parametrize("slug", SLUGS)
def test_changes_lead_from_one_moment_to_the_next(slug: str) -> None:
    """What came less what went is the difference of the totals."""
    before = 0.0
    for moment in life(slug).moments:
        change = sum(value for _, value in moment.came) - sum(value for _, value in moment.left)
        assert change == pytest.approx(moment.total - before, abs=len(moment.held) + 10)
        before = moment.total


def test_every_strategy_has_its_page_and_its_neighbours(client: TestClient) -> None:
    """The table links to each, and each to the next."""
    table = fetched(client, "/strategies").text
    assert all(f'href="/method/strategies/{slug}"' in table for slug in SLUGS)
    views = [as_json(client, f"/strategies/{slug}") for slug in SLUGS]
    assert [view["label"] for view in views] == [s.label for s in STRATEGIES]
    assert [view["after"]["slug"] for view in views[:-1]] == SLUGS[1:]
    assert views[0]["before"] is None and views[-1]["after"] is None
    assert all(view["flows"] for view in views)
    assert [one.slug for one in lives()] == SLUGS


def test_a_page_opens_at_a_moment(client: TestClient) -> None:
    """The one of the address, the peak without one; one is checked either way."""
    for query, expected in (("?at=step", "step"), ("", as_json(client, "/strategies/zero2")["peak"]), ("?at=nonsense", None)):
        page = Tags(fetched(client, f"/strategies/zero2{query}").text)
        checked = [attrs["value"] for tag, attrs in page.tags if tag == "input" and "checked" in attrs]
        assert len(checked) == 1
        assert expected in (None, checked[0])


def test_every_claim_has_a_source_and_arithmetic_where_it_has_a_size(client: TestClient) -> None:
    """Sources are registered, keys are in the catalogue, figures are finite and belong to a claim that exists."""
    claims, known = load_claims(), {key.name for key in load_keys()}
    assert len({claim.key for claim in claims}) == len(claims)
    assert set(EVIDENCE) <= {claim.key for claim in claims}
    for claim in claims:
        assert claim.sources and set(claim.sources) <= set(SOURCES)
        assert set(claim.keys) <= known
        assert claim.topic in claim_topics()
        assert all(0 <= fact.value < 1e15 for fact in evidence_of(claim.key))
    text = Tags(fetched(client, "/wrong-claims").text).text
    assert all(claim.claim in text and claim.truth in text for claim in claims)


@pytest.mark.parametrize(
    ("claim", "less", "more"),
    [
        ("sixteen-bytes", 1, 2),
        ("one-nth", 0, 2),
        ("peak-is-a-sum", 1, 0),
        ("logits-are-small", 1, 0),
        ("eighty-gb", 1, 2),
        ("eighty-gb", 2, 0),
        ("gradients-in-fp32", 0, 1),
        ("experts-by-active", 1, 0),
        ("lora-zero2", 1, 0),
        ("estimator", 0, 1),
        ("overlap-four-and-a-half", 1, 0),
        ("zero12-twice", 0, 1),
        ("zero12-twice", 3, 4),
        ("reduce-scatter-key", 1, 0),
        ("no-reshard-no-gather", 1, 0),
        ("no-reshard-no-gather", 2, 3),
        ("host-twelve", 0, 1),
        ("host-and-nodes", 2, 0),
        ("ratio-alone", 0, 1),
        ("hsdp-is-hpz", 2, 0),
        ("hsdp-is-hpz", 1, 3),
    ],
)
def test_figures_bear_the_correction_out(claim: str, less: int, more: int) -> None:
    """The engine's arithmetic says what the words say: one figure of the claim is below another."""
    facts = evidence_of(claim)
    assert facts[less].value < facts[more].value


def test_offload_below_stage_three_changes_nothing() -> None:
    """The figures behind the two claims: parameters stay, the disk stays empty."""
    same = evidence_of("offload-param-anywhere")
    assert same[0].value == same[1].value > 0 == same[2].value
    disk, host = evidence_of("nvme-at-stage-2")
    assert disk.value == 0 < host.value


def test_names_have_counterparts_or_say_that_there_is_none(client: TestClient) -> None:
    """Every row of the tables is on the page; keys are spelled as the catalogue has them."""
    known = {key.name for key in load_keys()}
    assert {row.deepspeed for row in COUNTERPARTS if row.deepspeed} <= known
    assert all(row.note for row in COUNTERPARTS if not (row.deepspeed and row.fsdp2))
    text = Tags(fetched(client, "/deepspeed-fsdp").text).text
    names = [row.fsdp1 for row in SHARDINGS] + [name for row in (*KEYS, *CALLS) for name in (row.fsdp1, row.fsdp2) if name]
    names += [name for row in COUNTERPARTS for name in (row.deepspeed, row.fsdp2) if name] + sorted(known)
    assert [name for name in names if name not in text] == []


def test_accuracy_is_the_data(client: TestClient) -> None:
    """Every row of the data is a dot; a source has its rows and its rings; one that is not there is refused."""
    data, view = document("accuracy"), as_json(client, "/accuracy")
    for section, shown in zip(data["sections"], view["sections"], strict=True):
        assert shown["scatter"]["dots"].count("M") == len(section["rows"]) == section["all"]["rows"]
        assert shown["rows"] == []
        for family in section["families"]:
            errors = sorted(abs(row[2] / row[3] - 1) for row in section["rows"] if row[1] == family["family"])
            middle = (errors[(len(errors) - 1) // 2] + errors[len(errors) // 2]) / 2
            assert family["rows"] == len(errors)
            assert family["median_error_frac"] == pytest.approx(middle, abs=2e-4)
    chosen = as_json(client, "/accuracy?source=qwen")["sections"][0]
    assert chosen["scatter"]["rings"].count("M") == len(chosen["rows"]) > 10
    assert chosen["scatter"]["dots"].count("M") + len(chosen["rows"]) == len(data["sections"][0]["rows"])
    refused = client.get("/method/accuracy?source=nobody", headers=JSON)
    assert refused.status_code == 422
    assert "qwen" in refused.json()["errors"][0]["hint"]


def test_dots_lie_where_they_belong(client: TestClient) -> None:
    """On equal axes a run that is predicted too high lies above the line of agreement, and every dot is inside the frame."""
    for section, shown in zip(document("accuracy")["sections"], as_json(client, "/accuracy")["sections"], strict=True):
        size = shown["scatter"]["size"]
        dots = [tuple(map(float, dot.split())) for dot in re.findall(r"M([\d. ]+)h0", shown["scatter"]["dots"])]
        for row, (x, y) in zip(section["rows"], dots, strict=True):
            assert 0 <= x <= size and 0 <= y <= size
            if abs(row[2] / row[3] - 1) > 0.02:
                assert (size - y > x) is (row[2] > row[3])


def test_sources_name_everything_that_cites_them(client: TestClient) -> None:
    """Every source of a card or claim, with a link to it; every key a data file cites is explained there."""
    view = as_json(client, "/sources")
    cited = {source["key"]: source for source in view["formulas"]}
    for key, card in all_cards().items():
        assert {"title": card.title, "href": href(key)} in cited[card.source]["cards"]
    for claim in load_claims():
        assert all(any(c["href"].endswith(f"#{claim.key}") for c in cited[key]["claims"]) for key in claim.sources)
    for name in ("gpus", "instances"):
        counted = {row.key: row.entries for row in cited_by_catalogue(name)}
        assert all(counted.values())
        assert set(counted) == set(document(name)["sources"])


def test_links_inside_resolve(client: TestClient) -> None:
    """Every address of this service that a method page has answers, and what it points at on a page is there."""
    anchors: dict[str, set[str]] = {}
    wanted: set[tuple[str, str]] = set()
    for path in PAGES:
        page = Tags(fetched(client, path).text)
        anchors[f"/method{path}"] = {str(attrs["id"]) for _, attrs in page.tags if attrs.get("id")}
        for tag, attrs in page.tags:
            link = urlsplit(str(attrs.get("href") or ""))
            if tag == "a" and not link.netloc and not link.path.startswith("/static"):
                wanted.add((link.path or f"/method{path}", link.fragment))
    assert len(wanted) > 150
    assert {path for path, _ in wanted} <= {*anchors, "/", "/audit", "/diagnose", "/plans", "/docs", "/catalog", "/openapi.json"}
    assert [(path, name) for path, name in wanted if name and name not in ("main",) and name not in anchors[path]] == []


def test_examples_lead_to_their_plans(client: TestClient) -> None:
    """The plan behind a link is the one the figures are of."""
    view = as_json(client, "/memory")
    answered = client.get(view["example"]["href"], headers=JSON).json()
    assert answered["recommended"]["memory"]["gpu"]["device_bytes"] == work("zero3").candidate.gpu.device_bytes
    assert all(client.get(example["href"], headers=JSON).status_code == 200 for example in view["examples"])


@pytest.mark.parametrize("path", ["/nothing", "/strategies/zero4", "/strategies/%00"])
def test_what_is_not_there_is_not_found(client: TestClient, path: str) -> None:
    """404 as a page and as a problem."""
    assert fetched(client, path).status_code == 404
    assert client.get(f"/method{path}", headers=JSON).json()["status"] == 404


def test_moments_are_said_shortly() -> None:
    """All, all but the first, runs of blocks, and shares where less or more than all is alive."""
    assert alive_words([(moment, 1.0) for moment in MOMENTS]) == "at every moment"
    assert alive_words([(moment, 1.0) for moment in MOMENTS[1:]]) == "from the first forward on"
    blocks = [(moment, 1.0) for moment in MOMENTS[3:7]]
    assert (
        alive_words([("loss", 0.5), *blocks, ("reduction", 2.0)]) == "loss backward (50 %), backward of the blocks, end of backward (2 ×)"
    )
