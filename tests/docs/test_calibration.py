"""What docs/calibration.md says: its request is taken, its fields are those there are, and its commands exist."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from fastapi.testclient import TestClient

from app.cli.command import parser_for
from app.services.measured import MeasurementIn
from app.web.schemas import EXAMPLE_REQUEST

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "calibration.md").read_text(encoding="utf-8")


def test_the_request_of_the_page_is_taken(client: TestClient) -> None:
    """For the plan of the example."""
    found = re.search(r"-d '(\{.*\})'", TEXT)
    assert found is not None
    plan = client.post("/plans", json=EXAMPLE_REQUEST).json()["id"]
    assert client.post(f"/plans/{plan}/measurements", json=json.loads(found[1])).status_code == 201


def test_the_table_has_every_field() -> None:
    """And no other."""
    named = {name for row in re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert named == set(MeasurementIn.model_fields)


def test_the_commands_exist() -> None:
    """With the arguments they are given."""
    lines = [line.partition(" > ")[0] for line in TEXT.splitlines() if line.startswith("shardplan ")]
    assert len(lines) == 2
    for line in lines:
        typed = shlex.split(line)[1:]
        assert callable(parser_for(typed).parse_args(typed).run)
