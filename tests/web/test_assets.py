"""Files of others: pinned, licensed, unchanged, and kept by browsers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

VENDOR = Path(__file__).resolve().parents[2] / "static" / "vendor"
MANIFEST = json.loads((VENDOR / "manifest.json").read_text(encoding="utf-8"))


def test_the_manifest_lists_every_file_with_its_hash() -> None:
    """Nothing is there that it does not name, and nothing has been changed."""
    there = {path.name for path in VENDOR.iterdir()} - {"manifest.json"}
    assert {entry["file"] for entry in MANIFEST} == there
    for entry in MANIFEST:
        assert hashlib.sha256((VENDOR / entry["file"]).read_bytes()).hexdigest() == entry["sha256"], entry["file"]
        assert entry["version"] in entry["file"]
        assert set(entry) == {"file", "sha256", "name", "version", "licence", "package", "source", "changes"}


def test_each_library_has_its_licence() -> None:
    """Beside it, and of a kind that may be passed on."""
    for name in {entry["name"] for entry in MANIFEST}:
        (licence,) = (e["file"] for e in MANIFEST if e["name"] == name and e["source"] == "LICENSE")
        assert "Redistribution and use in source and binary forms" in (VENDOR / licence).read_text(encoding="utf-8")
    assert {entry["licence"] for entry in MANIFEST} == {"BSD-3-Clause"}


def test_no_source_map_is_asked_for() -> None:
    """Since none is served."""
    assert [p.name for p in VENDOR.glob("*.js") if "sourceMappingURL" in p.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("entry", [e for e in MANIFEST if e["file"].endswith(".js")], ids=lambda e: e["file"])
def test_libraries_are_kept_for_good_and_our_own_files_are_not(client: TestClient, entry: dict[str, str]) -> None:
    """The version in the name makes that safe; our stylesheet is asked about each time."""
    answer = client.get(f"/static/vendor/{entry['file']}")
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert hashlib.sha256(answer.content).hexdigest() == entry["sha256"]
    assert "immutable" not in client.get("/static/app.css").headers.get("cache-control", "")


def test_the_page_names_the_scripts_in_their_order(client: TestClient) -> None:
    """Vega before what needs it; both kinds of answer page have them."""
    html = client.get("/", headers={"accept": "text/html"}).text
    names = html.partition('data-files="')[2].partition('"')[0].split()
    assert [name.partition("-6")[0].partition("-2")[0] for name in names] == ["vega", "vega-lite", "vega-interpreter"]
    assert all((VENDOR / name).is_file() for name in names)
