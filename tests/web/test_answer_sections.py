"""Sections of the answer page that show a part of the document as it is."""

from __future__ import annotations

from fastapi.testclient import TestClient

from app.web.schemas import EXAMPLE_REQUEST
from tests.web.test_pages import BASE, HTML, get, safe


def test_checkpoints_are_those_of_the_api(client: TestClient) -> None:
    """Files, the ledger with exact bytes, commands and host memory; a plan that does not fit has no such section."""
    document = client.post("/plan", json=EXAMPLE_REQUEST).json()["checkpoint"]
    page = safe(get(client).text)
    section = page.text[page.text.index("Checkpoints") :]
    for term in document["terms"]:
        assert f"{term['formula']} = {term['bytes']:,} bytes" in section
    for file in document["files"]:
        assert file["name"] in section
    for export in document["exports"]:
        assert "\n".join(export["commands"]) in section
        assert export["host"]["formula"] in section
    assert document["resume"]["other"] in section
    too_large = get(client, **(BASE | {"model": "llama-3.1-70b"}), strategy="zero1").text
    assert 'id="checkpoint"' in client.get("/", headers=HTML).text
    assert 'id="checkpoint"' not in too_large
