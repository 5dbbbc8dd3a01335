"""docs/audit.md: its commands, run as they stand there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.settings import AppSettings
from tests.docs.test_pipelines import SPEC, shell
from tests.served import served

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "audit.md").read_text()
COMMANDS, CURL = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
IGNORED = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}, "overlap_comm": True},
}
FAILS = {"bf16": {"enabled": True}, "fp16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with a request and a configuration, and the command as an installation has it."""
    command = tmp_path / "bin" / "shardplan"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m app.cli \"$@\"\n")
    command.chmod(0o755)
    (tmp_path / "plan.yaml").write_text(SPEC)
    (tmp_path / "ds_config.json").write_text(json.dumps(IGNORED))
    return tmp_path


def outcome(done: subprocess.CompletedProcess[str]) -> int:
    """The exit code, 3 and above of which say that the command itself is wrong."""
    assert done.returncode < 3, done.stderr
    return done.returncode


def test_the_commands_do_what_they_say(folder: Path) -> None:
    """Warnings pass unless strictly; the corrected file passes that too; what fails is 2."""
    plain, model, written, strict, older = (line.partition("#")[0] for line in COMMANDS.strip().splitlines())
    assert outcome(shell(plain, folder)) == 0
    assert "DS013 zero_optimization.offload_param" in shell(model, folder).stdout
    assert outcome(shell(written, folder)) == 0
    assert "offload_param" not in json.loads((folder / "fixed.json").read_text())["zero_optimization"]
    assert outcome(shell(strict, folder)) == 1
    assert json.loads(shell(older, folder).stdout)["versions"]["deepspeed"] == "0.18.4"
    (folder / "ds_config.json").write_text(json.dumps(FAILS))
    assert outcome(shell(plain, folder)) == 2


def test_the_request_is_answered(tmp_path: Path, folder: Path) -> None:
    """By a running service."""
    with served(AppSettings(database_url=f"sqlite:///{tmp_path / 'a.db'}", log_format="text")) as address:
        answer = json.loads(shell(CURL.replace("$URL", address), folder).stdout)
    assert "DS013" in {found["id"] for found in answer["findings"]}
    assert answer["predicted"]["settings"]["offload_parameters"] == "none"
