"""Names nobody should trust, sent where a request takes free text, and looked for in all that comes back.

``tests/emit/test_files.py`` has the files by themselves; here they go the whole way, through the API, the pages and downloads.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from app.domain.plan import Artifact
from app.main import create_app
from app.observability import JsonFormatter
from app.settings import AppSettings
from tests.emit.test_files import HOSTILE, check, shape_of
from tests.web.test_pages import CONFIG, HTML, safe

NAMES = [
    *(name.replace("\0", "") for name in HOSTILE),
    "`touch pwned`",
    "%0d%0aSet-Cookie: a=b",
    "\r\nSet-Cookie: a=b\r\n\r\n<script>alert(1)</script>",
    "\u2028import os\u2029\x85x\x0b\x0c",
    "\u202egpj.exe\u2066\u200b\ufeff",
    "&lt;script&gt;&#x27;&quot;",
    "'\"><img src=x onerror=alert(1)>",
    "javascript:alert(1)",
    "../../etc/passwd",
    "${IFS}rm${IFS}-rf",
    "EOF\nrm -rf ~\nEOF",
    "-rf ~",
    "<!--<script>",
    "]]>",
]
PLANS = {
    "deepspeed": {"framework": "deepspeed", "strategy": "zero3"},
    "offload": {"framework": "deepspeed", "strategy": "zero3", "offload_optimizer": "nvme"},
    "fsdp2": {"framework": "fsdp2", "strategy": "fsdp_full"},
    "ddp": {"framework": "ddp", "strategy": "ddp"},
}
STUBS = ("torchrun", "deepspeed", "accelerate", "python", "python3", "rm", "touch", "curl", "wget", "alert", "import")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    path = tmp_path_factory.mktemp("hostile") / "service.db"
    app = create_app(AppSettings(database_url=f"sqlite:///{path}", log_format="text", log_level="ERROR"))
    with TestClient(app, raise_server_exceptions=False) as opened:
        yield opened


def request_named(name: str, plan: str = "fsdp2") -> dict[str, Any]:
    """A request with a name in every place for one."""
    config = json.loads(CONFIG % "x") | {"_name_or_path": name, "note": name, name or "x": [name], "id2label": {"0": name}}
    gpu = {"name": name[:100], "memory_gib": 80, "bf16_tflops": 989, "hbm_gb_per_s": 3350}
    return {
        "model": {"hf_config": config},
        "training": {"seq_len": 512, "micro_batch": 1, "grad_accum": 1},
        "cluster": {"pools": [{"gpu": gpu, "gpus_per_node": 2, "nodes": 2, "nvme_gb": 1000, "host_memory_gib": 512}]},
        "constraints": PLANS[plan],
    }


def saved(service: TestClient, name: str, plan: str = "fsdp2") -> dict[str, Any]:
    answer = service.post("/plans", json=request_named(name, plan) | {"name": name[:200], "note": name})
    assert answer.status_code == 201, answer.text
    clean(answer, name)
    return dict(answer.json())


def clean(answer: httpx.Response, name: str) -> httpx.Response:
    """An answer whose headers are what they would be without the name."""
    assert answer.status_code < 500
    assert "set-cookie" not in answer.headers
    assert not any("\r" in value or "\n" in value or (len(name) > 3 and name in value) for value in answer.headers.values())
    assert answer.headers["x-content-type-options"] == "nosniff"
    return answer


def texts(plan: dict[str, Any]) -> dict[str, str]:
    """Every generated text of a plan, those of both dialects."""
    return plan["files"] | {f"hf_auto {name}": text for name, text in plan["dialects"]["hf_auto"].items()}


def same_program(tame: str, wild: str, filename: str) -> None:
    """Python has the same syntax tree but for its literals, the shell the same words, YAML and JSON the same keys."""
    bare = filename.removeprefix("hf_auto ")
    before, after = (check(Artifact(filename=bare, media_type="", text=text)) for text in (tame, wild))
    if bare.endswith(".py"):
        assert shape_of(before) == shape_of(after)
    else:
        assert list(before) == list(after)


@pytest.fixture(scope="module")
def tame(service: TestClient) -> dict[str, dict[str, str]]:
    """The files of each plan, for a name that is a word."""
    return {plan: texts(saved(service, "tame", plan)) for plan in PLANS}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", NAMES)
def test_files_do_the_same_whatever_the_names(service: TestClient, tame: dict[str, dict[str, str]], name: str, plan: str) -> None:
    """As they come with the answer, and as they are downloaded."""
    kept = saved(service, name, plan)
    wild = texts(kept)
    assert set(wild) == set(tame[plan])
    for filename, text in wild.items():
        same_program(tame[plan][filename], text, filename)
    for filename in kept["files"]:
        assert clean(service.get(f"/plans/{kept['id']}/{filename}"), name).text == kept["files"][filename]


@seed(1)
@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60)
    | st.text("'\"\\`$(){}<>%#\n\r;&|", min_size=1)
)
def test_files_do_the_same_for_any_name(service: TestClient, tame: dict[str, dict[str, str]], name: str) -> None:
    """Names that nobody thought of."""
    for filename, text in texts(saved(service, name, "deepspeed")).items():
        same_program(tame["deepspeed"][filename], text, filename)


@pytest.mark.parametrize("plan", PLANS)
def test_the_launcher_starts_training_and_nothing_else(service: TestClient, tmp_path: Path, plan: str) -> None:
    """Run where every program is a stand-in that notes its call: one call, that of the launcher, for all names."""
    for number, name in enumerate(NAMES):
        folder = tmp_path / str(number)
        (folder / "bin").mkdir(parents=True)
        for stub in STUBS:
            program = folder / "bin" / stub
            program.write_text(f'#!/bin/sh\nprintf "%s" "{stub}" >> "{folder}/calls"\n')
            program.chmod(0o755)
        script = folder / "launch.sh"
        text = saved(service, name, plan)["files"]["launch.sh"]
        script.write_text(text.replace("NVME_PATH=/", f"NVME_PATH={tmp_path} # /"), encoding="utf-8")
        environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "MASTER_ADDR": "localhost", "HOME": str(folder)}
        done = subprocess.run(["bash", str(script)], cwd=folder, env=environment, capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), name
        assert (folder / "calls").read_text() == "torchrun", name
        assert sorted(path.name for path in folder.iterdir()) == ["bin", "calls", "launch.sh"]


@pytest.mark.parametrize("name", NAMES)
def test_pages_show_names_as_text(service: TestClient, name: str) -> None:
    """Every page that names a plan, model or GPU; no tag, attribute or address of theirs."""
    kept, other = saved(service, name), saved(service, "tame")
    path = f"/plans/{kept['id']}"
    pages = [
        service.get(path, headers=HTML),
        service.get("/plans", headers=HTML),
        service.get(f"/plans/compare?ids={kept['id']},{other['id']}", headers=HTML),
        service.post(f"{path}/replan", headers=HTML),
    ]
    words = " ".join(name.split())[:100]
    for page in pages:
        assert clean(page, name).status_code == 200
        assert words in " ".join(safe(page.text).text.split()) or not words.isprintable()
    tags = [[tag for tag, _ in safe(page.text).tags] for page in pages[2:]]
    bare = [f"/plans/compare?ids={saved(service, 'x')['id']},{other['id']}", f"/plans/{saved(service, 'x')['id']}/replan"]
    plain = [service.get(bare[0], headers=HTML), service.post(bare[1], headers=HTML)]
    assert tags == [[tag for tag, _ in safe(page.text).tags] for page in plain]


@pytest.mark.parametrize("name", NAMES)
def test_refusals_repeat_names_as_text(service: TestClient, name: str) -> None:
    """In problems as pages and as JSON, wherever a request may hold a word that is not known."""
    body = request_named("x")
    wrong: list[dict[str, Any]] = [
        {"model": {"hf_config": body["model"]["hf_config"] | {"model_type": name, "architectures": [name]}}},
        {"model": {"preset": name[:200]}},
        {"model": {"hf_id": name[:200]}},
        {"cluster": {"pools": [{"gpu": name[:200]}]}},
        {"cluster": {"pools": [{"instance": name[:200]}]}},
        {"constraints": {"framework": name}},
        {name: 1},
        {"training": {"seq_len": 512, "adapter": {"kind": "lora", "targets": [name]}}},
    ]
    asked = [service.post("/plan", json=body | change, headers=accept) for change in wrong for accept in ({}, HTML)]
    for where in ("q", "name", "model", "gpu", "cursor", "ids", name):
        asked += [
            service.get(at, params={where: name}, headers=accept) for at in ("/plans", "/plans/compare", "/") for accept in ({}, HTML)
        ]
    asked += [service.request(method, f"/plans/{quote(name, safe='')}", headers=HTML | {"edit-token": "x"}) for method in ("GET", "DELETE")]
    for answer in asked:
        kind = clean(answer, name).headers["content-type"].partition(";")[0]
        assert kind in ("text/html", "application/problem+json", "application/json")
        if kind == "text/html":
            safe(answer.text)
        else:
            answer.json()
    assert sum(answer.status_code >= 400 for answer in asked) >= 16


def test_a_path_writes_no_line_of_the_log(service: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    """It is named by its route, so that nobody writes lines of their own."""
    with caplog.at_level("INFO"):
        service.get("/nothing%0a2026-01-01%20ERROR%20forged%e2%80%a8")
    (record,) = [record for record in caplog.records if record.name == "shardplan.request"]
    assert record.getMessage() == "GET unmatched 404"
    assert "forged" not in JsonFormatter().format(record)
