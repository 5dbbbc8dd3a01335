"""docs/diagnose.md: its examples are asked, and give what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fastapi.testclient import TestClient

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "diagnose.md").read_text()


def test_the_examples_give_what_is_said(client: TestClient) -> None:
    """The arithmetic, the remedies and the link."""
    failed, slow = (client.post("/diagnose", json=json.loads(text)).json() for text in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL))
    assert f"`{failed['tensor']['arithmetic']}`" in TEXT
    assert "one Adam moment" in failed["tensor"]["name"]
    assert (failed["remedies"][0]["label"], failed["remedies"][0]["enough"]) == ("ZeRO-3", True)
    assert "the parameter all-gather" in slow["slowness"]["binds"]
    assert "the network between nodes" in slow["slowness"]["binds"]
    assert slow["remedies"][0]["label"] == "DDP"
