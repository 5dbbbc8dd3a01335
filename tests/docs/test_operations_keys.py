"""The commands of docs/operations.md under Keys, run as they stand there against a service that requires keys."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx

from app.services.keys import SCOPES
from app.settings import AppSettings
from app.web.keys import RULES
from tests.docs.test_operations import ROOT, folder, run
from tests.faults.service import BODY, running

__all__ = ["folder"]
TEXT = (ROOT / "docs" / "operations.md").read_text()
SECTION = TEXT.partition("## Keys")[2].partition("\n## ")[0]
(BLOCK,) = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)


def test_the_commands_work(folder: Path) -> None:
    """A key is made, used, followed by another and ended; the next one opens the same."""
    url = f"sqlite:///{folder / 'keys.db'}"
    with running(url, folder, require_keys=True) as service:
        assert httpx.get(f"{service.url}/plans").status_code == 401
        told = run(BLOCK, folder, SHARDPLAN_DATABASE_URL=url, SERVICE=service.url)
        assert told.startswith('{"items":[]')
        assert [line.split()[-1] for line in told.splitlines()[-2:]] == ["revoked", "works"]
        new = (folder / "new.key").read_text().strip()
        assert httpx.get(f"{service.url}/plans", headers={"authorization": f"Bearer {new}"}).status_code == 200
        assert new not in service.log.read_text()
        (folder / "request.json").write_text(json.dumps(BODY))
        ask = 'shardplan plan request.json --against "$SERVICE"'
        assert "Fits: " in run(ask, folder, SERVICE=service.url, SHARDPLAN_API_KEY=new)


def test_every_scope_and_setting_is_described() -> None:
    """By its name, and none that does not exist."""
    assert set(re.findall(r"^\| `(\w+)` \|", SECTION, re.MULTILINE)) == set(SCOPES) == {scope for _, _, scope in RULES}
    shared = TEXT.partition("## On a shared network")[2].partition("\n## ")[0]
    named = {name.lower() for name in re.findall(r"SHARDPLAN_([A-Z_]+)", SECTION + shared)}
    assert {"require_keys", "list_plans", "allowed_hosts", "body_timeout_s", "page_size_max"} <= named
    assert named <= set(AppSettings.model_fields)
