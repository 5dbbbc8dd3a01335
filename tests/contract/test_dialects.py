"""One plan in two dialects: by the API, from a page's links, for a saved plan and from the command line."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app import cli
from app.services.saved_plans import SavedPlans
from app.settings import AppSettings
from app.store.session import Database
from app.web.schemas import EXAMPLE_REQUEST
from tests.emit.lint import autos

HTML = {"accept": "text/html"}
ZERO: dict[str, Any] = EXAMPLE_REQUEST | {"constraints": {"framework": "deepspeed", "strategy": "zero3"}}
QUERY = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "gpus_per_node": "8", "seq_len": "8192", "framework": "deepspeed"}


def is_automatic(text: str) -> bool:
    """Whether a ds_config leaves its batch to the Trainer."""
    return "train_batch_size" in autos(json.loads(text))


def test_the_api_gives_both(client: TestClient) -> None:
    """The document holds what the file routes answer with; the plain files stay plain."""
    plan = client.post("/plan", json=ZERO).json()
    trainer = plan["dialects"]["hf_auto"]
    assert set(trainer) == {"training_args.py", "ds_config.json"}
    assert is_automatic(trainer["ds_config.json"])
    assert not is_automatic(plan["files"]["ds_config.json"])
    assert "training_args.py" not in plan["files"]
    for name, text in trainer.items():
        assert client.post(f"/plan/{name}?dialect=hf_auto", json=ZERO).text == text
    assert client.post("/plan/training_args.py", json=ZERO).text == trainer["training_args.py"]
    assert client.post("/plan/ds_config.json", json=ZERO).text == plan["files"]["ds_config.json"]
    assert client.post("/plan/launch.sh?dialect=hf_auto", json=ZERO).text == plan["files"]["launch.sh"]
    assert client.post("/plan/ds_config.json?dialect=klingon", json=ZERO).status_code == 422


def test_what_the_trainer_cannot_do_is_409(client: TestClient) -> None:
    """Pipelines have no argument: the file is refused with the reason, and the plan's own files remain."""
    body = EXAMPLE_REQUEST | {"constraints": {"framework": "deepspeed", "strategy": "zero1", "pipeline_parallel": 2}}
    plan = client.post("/plan", json=body).json()
    assert plan["files"]
    assert "training_args.py" not in plan["dialects"]["hf_auto"]
    refused = client.post("/plan/training_args.py", json=body)
    assert refused.status_code == 409
    assert "parallelism" in refused.json()["detail"]


def test_a_plan_that_does_not_fit_has_none(client: TestClient) -> None:
    """As it has no other file."""
    body = EXAMPLE_REQUEST | {"model": {"preset": "llama-3.1-70b"}, "constraints": {"framework": "deepspeed", "strategy": "zero1"}}
    assert client.post("/plan", json=body).json()["dialects"] == {"hf_auto": {}}


def test_the_page_links_to_them(client: TestClient) -> None:
    """Links work from the query, buttons from a posted form."""
    page = client.get("/", params=QUERY, headers=HTML).text
    links = [link.replace("&amp;", "&") for link in re.findall(r'href="(/download/[^"]*dialect=hf_auto)"', page)]
    assert [link.partition("?")[0] for link in links] == ["/download/training_args.py", "/download/ds_config.json"]
    ast.parse(client.get(links[0]).text)
    assert is_automatic(client.get(links[1]).text)
    posted = client.post("/download/ds_config.json?dialect=hf_auto", data=QUERY)
    assert is_automatic(posted.text)


def test_a_saved_plan_keeps_both(client: TestClient) -> None:
    """Each under a link of its own; the page of the plan has them too."""
    saved = client.post("/plans", json=ZERO).json()
    links = saved["links"]
    assert not is_automatic(client.get(links["ds_config.json"]).text)
    assert {n: client.get(link).text for n, link in saved["dialect_links"]["hf_auto"].items()} == saved["dialects"]["hf_auto"]
    assert client.get(f"{links['self']}/training_args.py").text == saved["dialects"]["hf_auto"]["training_args.py"]
    page = client.get(links["self"], headers=HTML).text
    assert f'href="/plans/{saved["id"]}/ds_config.json?dialect=hf_auto"' in page


def test_a_plan_saved_before_there_were_dialects_says_so(client: TestClient, settings: AppSettings) -> None:
    """The other dialect is never given in place of the one asked for; its page has no checkpoints either."""
    answer = client.post("/plan", json=ZERO).json()
    old = {key: value for key, value in answer.items() if key not in ("dialects", "checkpoint")}
    path = f"/plans/{SavedPlans(Database(settings.database_url)).save(ZERO, old).id}"
    assert not is_automatic(client.get(f"{path}/ds_config.json").text)
    gone = client.get(f"{path}/ds_config.json?dialect=hf_auto")
    assert gone.status_code == 404
    assert "plan again" in gone.json()["detail"]
    page = client.get(path, headers=HTML)
    assert page.status_code == 200
    assert 'id="checkpoint"' not in page.text


@pytest.mark.parametrize(("dialect", "automatic"), [("plain", False), ("hf_auto", True)])
def test_the_command_line_writes_either(tmp_path: Path, dialect: str, automatic: bool) -> None:
    """Beside the same launch.sh and training_args.py."""
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(ZERO))
    names = ("ds_config.json", "training_args.py", "launch.sh")
    outputs = [argument for name in names for argument in ("-o", str(tmp_path / name))]
    assert cli.main(["plan", str(spec), "--dialect", dialect, *outputs]) in (0, 1)
    assert is_automatic((tmp_path / "ds_config.json").read_text()) is automatic
    ast.parse((tmp_path / "training_args.py").read_text())
    assert (tmp_path / "launch.sh").read_text().startswith("#!")


def test_split_sequences_are_said_to_need_a_helper(client: TestClient) -> None:
    """A file alone splits nothing; what does is named, and is in the files that can say it."""
    body = ZERO | {"constraints": {"framework": "deepspeed", "strategy": "zero3", "sequence_parallel": 2}}
    plan = client.post("/plan", json=body).json()
    said = {w["code"]: w for w in plan["warnings"]}["sequence_parallel_needs_helper"]
    assert said["field"] == "constraints.sequence_parallel"
    assert "UlyssesSPAttentionHF.register_with_transformers" in said["fix"]
    assert "sp_size=2" in plan["dialects"]["hf_auto"]["training_args.py"]
    assert "parallelism_config_sp_size: 2" in plan["files"]["accelerate.yaml"]
    plain = client.post("/plan", json=ZERO).json()
    assert "sequence_parallel_needs_helper" not in {w["code"] for w in plain["warnings"]}


def test_files_of_a_saved_plan_name_it(client: TestClient) -> None:
    """By its name and the address it can be read at, through the API and the form; hostile names stay comments."""
    hostile = '"; rm -rf ~ #\nimport os'
    saved = client.post("/plans", json=ZERO | {"name": f"  {hostile} "}).json()
    page = client.post("/save", data=QUERY | {"name": hostile}, headers=HTML)
    by_form = client.get(page.headers["location"], headers={"accept": "application/json"}).json()
    for plan in (saved, by_form):
        texts = {**plan["files"], **plan["dialects"]["hf_auto"]}
        for text in (text for name, text in texts.items() if not name.endswith(".json")):
            assert f'# Plan: "; rm -rf ~ # import os, /plans/{plan["id"]}\n' in text
    assert "# Plan:" not in client.post("/plan/launch.sh", json=ZERO).text
