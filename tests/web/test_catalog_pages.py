"""The catalogue's tables: searched, sorted by links, each figure beside its source."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient

from tests.web.test_pages import JSON, get


def test_the_catalogue_is_searched_and_sorted(client: TestClient) -> None:
    """By words and by the columns of the table, as a page and as JSON; what is not known comes last, and a wrong column is refused."""
    gpus = client.get("/catalog/gpus", params={"sort": "usable", "order": "falling"}, headers=JSON).json()["gpus"]
    sizes = [gpu["usable_bytes"] for gpu in gpus]
    assert len(sizes) > 20
    assert sizes == sorted(sizes, reverse=True)
    found = client.get("/catalog/models", params={"q": "qwen2.5 72"}, headers=JSON).json()
    assert [model["key"] for model in found["models"]] == ["qwen2.5-72b"]
    assert found["sources"]
    peaks = [
        gpu["peak_dense_tflops"]["bf16"] for gpu in client.get("/catalog/gpus", params={"sort": "dense-bf16"}, headers=JSON).json()["gpus"]
    ]
    known = [peak for peak in peaks if peak is not None]
    assert peaks == sorted(known) + [None] * (len(peaks) - len(known))
    assert len(known) < len(peaks)
    html = get(client, "/catalog/gpus", q="h100", sort="usable").text
    assert 'aria-sort="ascending"' in html
    assert "sort=usable&amp;order=falling&amp;q=h100" in html
    assert "No entry has these words" in get(client, "/catalog/gpus", q="abacus").text
    refused = client.get("/catalog/gpus", params={"sort": "colour"}, headers=JSON)
    assert refused.status_code == 422
    assert "usable" in refused.json()["errors"][0]["hint"]
    assert client.get("/catalog/gpus", params={"srot": "usable"}, headers=JSON).status_code == 422


@pytest.mark.parametrize("kind", ["gpus", "instances", "models"])
def test_every_column_of_the_catalogue_sorts(client: TestClient, kind: str) -> None:
    """Each title is a link that keeps every entry."""
    html = get(client, f"/catalog/{kind}").text
    links = re.findall(rf'<th scope="col"><a href="(/catalog/{kind}\?sort=[^"]+)"', html)
    assert len(links) >= 4
    every = len(client.get(f"/catalog/{kind}", headers=JSON).json()[kind])
    assert {len(client.get(link, headers=JSON).json()[kind]) for link in links} == {every}


def test_each_figure_of_a_gpu_has_its_source_beside_it(client: TestClient) -> None:
    """Every cell of a row names where it is from."""
    row = re.search(r'<tr id="h100-sxm-80gb">.*?</tr>', get(client, "/catalog/gpus").text, re.DOTALL)
    assert row
    assert row[0].count('<br><span class="note">') == 6
