"""Addresses with characters that no database stores: refused or not found, on both databases."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import AppSettings

ODD = ("%00", "a%00b", "%FF", "%ED%A0%80", "%F0%9F%98%80", "%27%3B--", "%25", "x" * 5000)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_odd_characters_are_not_found(database_url: str, method: str) -> None:
    """404 for a plan and for a file, and an answer for each word of a search: never a fault, never a database that seems away."""
    app = create_app(AppSettings(database_url=database_url, log_format="text"))
    with TestClient(app, raise_server_exceptions=False) as client:
        for odd in ODD:
            assert (odd, client.request(method, f"/plans/{odd}", headers={"edit-token": "x"}).status_code) == (odd, 404)
            if method == "GET":
                assert (odd, client.get(f"/plans/{odd}/launch.sh").status_code) == (odd, 404)
                for name, expected in (("q", (200, 422)), ("gpu", (200, 422)), ("cursor", (422,))):
                    assert client.get(f"/plans?{name}={odd}").status_code in expected, (name, odd)
