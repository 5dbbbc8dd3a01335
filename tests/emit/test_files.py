"""Which files a plan gets, and that a name nobody should trust is harmless in each of them."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
from dataclasses import replace
from typing import Any

import pytest
import yaml

from app.catalog.keys import load_keys
from app.domain.errors import ConflictError
from app.domain.plan import Artifact
from app.domain.versions import Versions
from app.emit import FILE_KINDS, file_for, files_for
from app.emit.deepspeed import deepspeed_config
from app.emit.job import EmitJob
from tests.emit.jobs import TINY_LLAMA, make_job, tiny_llama
from tests.emit.variants import FRAMEWORKS, all_jobs

JOBS = all_jobs()
HOSTILE = [
    '"; rm -rf ~ #',
    "$(touch pwned) `touch pwned`",
    "a\nimport os; os.abort()\nb",
    "a\r\nrm -rf ~\r\n",
    "{{ 7*7 }} {% raw %} << h.lr >> <% if x %> #% include 'plan.py.j2'",
    "'''\n\"\"\"\nboom",
    "</script><script>alert(1)</script>",
    "\\",
    "\\'\"\\",
    "%s %(prog)s %",
    "\u202eevil\u2028next\x00end\x1b[31m",
    "🙂 × ü",
    "key: value\n- item\n---\n!!python/object/apply:os.system [ls]",
    "x" * 5000,
]
OWN_FILES = {
    "deepspeed": {"ds_config.json", "ds_train.py", "accelerate.yaml", "launch.sh"},
    "fsdp2": {"fsdp2_train.py", "accelerate.yaml", "launch.sh"},
    "ddp": {"ddp_train.py", "accelerate.yaml", "launch.sh"},
}


def bash(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Bash reading a script from its input."""
    command = ["bash", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=30)


def code_lines(text: str) -> list[str]:
    """Lines that are neither empty nor a comment."""
    return [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]


def poisoned(job: EmitJob, name: str) -> EmitJob:
    """The job with every string a user controls replaced by one name."""
    model = job.model
    block = replace(model.main_block, class_name=name)
    stacks = (replace(model.stacks[0], block=block),)
    return replace(
        job,
        model=replace(model, name=name, family=name, model_class=name, stacks=stacks),
        hf_id=name,
        revision=name,
        hf_config={**TINY_LLAMA, "note": name, name: [name]},
        adapter={"kind": "lora", "rank": 8, "targets": [name], "modules_to_save": [name]},
        engine_version=name,
        figures={name: name, "GPU": name},
        nvme_path=f"/{name}",
        plan_name=name,
        plan_id=name,
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_plan_gets_the_files_of_its_framework(framework: str) -> None:
    """And the table of kinds says the same."""
    files = files_for(make_job(framework=framework))
    assert {file.filename for file in files} == OWN_FILES[framework]
    assert {name for name, owners in FILE_KINDS.items() if framework in owners} == OWN_FILES[framework]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_file_alone_is_the_same_and_a_foreign_one_is_refused(framework: str) -> None:
    """Asking for another framework's file names the plan's own."""
    job = make_job(framework=framework)
    for file in files_for(job):
        assert file_for(job, file.filename) == file
    foreign = (set(FILE_KINDS) - OWN_FILES[framework]).pop()
    with pytest.raises(ConflictError, match=rf"{framework} plan.*launch\.sh"):
        file_for(job, foreign)
    with pytest.raises(ConflictError, match="does not belong"):
        file_for(job, "../../etc/passwd")


@pytest.mark.parametrize("name", JOBS)
def test_every_variant_parses(name: str) -> None:
    """JSON, YAML, Python and bash all accept what is written."""
    for file in files_for(JOBS[name]):
        check(file)


def check(file: Artifact) -> Any:
    """Parse one file with the parser of its kind."""
    assert file.text.endswith("\n") and "\t" not in file.text
    if file.filename.endswith(".json"):
        return json.loads(file.text)
    if file.filename.endswith(".yaml"):
        return yaml.safe_load(file.text)
    if file.filename.endswith(".py"):
        return ast.parse(file.text)
    syntax = bash(file.text, "-n")
    assert syntax.returncode == 0, syntax.stderr
    return shlex.split("\n".join(code_lines(file.text)), comments=True)


def shape_of(tree: Any) -> Any:
    """What a file does: its syntax tree with every literal blanked."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = 0
        for field in ("elts", "keys", "values"):
            if isinstance(node, ast.Dict | ast.Set | ast.List) and hasattr(node, field):
                setattr(node, field, [])
    return ast.dump(tree)


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_hostile_name_changes_no_code(framework: str, hostile: str) -> None:
    """Python keeps its syntax tree, the shell its commands, YAML and JSON their keys."""
    strategy = {"deepspeed": "zero3", "fsdp2": "fsdp_full", "ddp": "ddp"}[framework]
    nvme = "nvme" if framework == "deepspeed" else "none"
    job = make_job(framework=framework, strategy=strategy, offload_optimizer=nvme)
    for tame, wild in zip(files_for(poisoned(job, "tame")), files_for(poisoned(job, hostile)), strict=True):
        before, after = check(tame), check(wild)
        if tame.filename.endswith(".py"):
            assert shape_of(before) == shape_of(after)
        elif tame.filename == "launch.sh":
            assert len(before) == len(after)
            assert [a for a, b in zip(before, after, strict=True) if a != b] in ([], ["NVME_PATH=/tame"])
        else:
            assert list(before) == list(after)
        assert all(line.startswith("#") for line in wild.text.split("\n") if "Written by Shardplan" in line)


def test_a_hostile_name_runs_nothing(tmp_path: Any) -> None:
    """The launcher reaches its own check of the drive and leaves no trace."""
    job = poisoned(make_job(strategy="zero3", offload_optimizer="nvme"), "$(touch pwned)`touch pwned`'; touch pwned; '")
    script = tmp_path / "launch.sh"
    script.write_text({file.filename: file.text for file in files_for(job)}["launch.sh"], encoding="utf-8")
    environment = {"PATH": "/usr/bin:/bin", "MASTER_ADDR": "localhost"}
    result = subprocess.run(["bash", str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=30)
    assert result.returncode == 1
    assert "missing or not writable" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["launch.sh"]


def test_a_hostile_path_reaches_deepspeed_as_it_is() -> None:
    """JSON carries any string; nothing is stripped from a path."""
    job = make_job(strategy="zero3", offload_optimizer="nvme", job={"nvme_path": "/a b/'\"\\ü"})
    zero = json.loads(deepspeed_config(job).text)["zero_optimization"]
    assert zero["offload_optimizer"]["nvme_path"] == "/a b/'\"\\ü"


def test_figures_are_in_every_header() -> None:
    """A file found later says what it was made for."""
    for framework in FRAMEWORKS:
        for file in files_for(make_job(framework=framework, model=tiny_llama())):
            assert file.filename.endswith(".json") or "# Peak memory: 61.4 GiB of 79.6 GiB" in file.text


def test_a_long_figure_is_wrapped_and_not_cut() -> None:
    """The plan's line is in every header whole, however many axes it names, in comment lines of bounded length."""
    plan = "ZeRO-3 on 2048 GPUs, hpZ groups of 8, tensor parallel 4, sequence parallel 2, ZeRO++ qwZ and qgZ, micro-batch 2 × 16, "
    plan += "full checkpointing kept on the host, optimizer offloaded to NVME, parameters offloaded to CPU"
    for framework in FRAMEWORKS:
        for file in files_for(make_job(framework=framework, job={"figures": {"plan": plan}})):
            if not file.filename.endswith(".json"):
                comments = [line for line in file.text.split("\n") if line.startswith("# ")]
                assert f"plan: {plan}" in " ".join(line.removeprefix("#").strip() for line in comments)
                assert max(map(len, comments[:8])) <= 110
    endless = files_for(make_job(job={"figures": {"plan": "x" * 5000}}))[0].text
    assert endless.count("x" * 90) < 8
    assert "…" in endless


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_headers_name_the_plan_and_the_versions(framework: str) -> None:
    """The name and address of a saved plan, the product's version, and what the file was written for."""
    saved = files_for(make_job(framework=framework, job={"plan_name": "first try", "plan_id": "abc-1"}))
    for kept, loose in zip(saved, files_for(make_job(framework=framework)), strict=True):
        if kept.filename.endswith(".json"):
            assert kept == loose
            continue
        assert "# Written by Shardplan 0.4.0 for tiny-llama." in kept.text
        assert "# Plan: first try, /plans/abc-1\n" in kept.text
        assert "# Plan:" not in loose.text
        assert re.search(r"^# For .*torch \d+\.\d+, transformers \d", kept.text, re.MULTILINE)
        assert ("DeepSpeed 0.19.8" in kept.text) is (framework == "deepspeed")


def test_headers_name_the_releases_of_the_request() -> None:
    """Where it names some, in place of the newest."""
    older = Versions(given=(("deepspeed", "0.17.0"), ("torch", "2.9.1")), keys=load_keys())
    for file in files_for(make_job(job={"versions": older})):
        assert file.filename.endswith(".json") or "# For DeepSpeed 0.17.0, torch 2.9.1, transformers 5.24, accelerate 1.15.\n" in file.text
