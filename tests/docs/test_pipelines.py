"""docs/pipelines.md: its commands, recipes and examples, run as they stand there."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app import cli
from app.client import Client, operations
from app.settings import AppSettings
from tests.served import served

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "pipelines.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)
SPEC, GRID, GITHUB, GITLAB = (text for language, text in BLOCKS if language == "yaml")
COMMANDS, SWEEPS, SEVERAL, CURL = (text for language, text in BLOCKS if language == "sh")
(MAKEFILE,) = (text for language, text in BLOCKS if language == "make")
PYTHON, SWEEP_PYTHON = (text for language, text in BLOCKS if language == "python")
EXPRESSION = re.compile(r"\$\{\{ (?:vars|secrets)\.(\w+) \}\}")
NOT_FITTING = SPEC.replace("llama-3.1-8b", "llama-3.1-70b").replace("deepspeed}", "deepspeed, strategy: zero1}")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = tmp_path_factory.mktemp("served") / "service.db"
    with served(AppSettings(database_url=f"sqlite:///{file}", log_format="text")) as address:
        yield address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with the question, and the command as an installation has it."""
    command = tmp_path / "bin" / "shardplan"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m app.cli \"$@\"\n")
    command.chmod(0o755)
    (tmp_path / "plan.yaml").write_text(SPEC)
    return tmp_path


def run(arguments: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {key: value for key, value in os.environ.items() if not key.startswith(("SHARDPLAN_", "MAKE"))}
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    known |= environment | {"PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.run(arguments, cwd=folder, env=known, capture_output=True, text=True, timeout=120)


def shell(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(["bash", "-euc", script], folder, **environment)


def write_files(folder: Path) -> None:
    written = shell("shardplan plan plan.yaml -o ds_config.json -o launch.sh", folder)
    assert written.returncode == 0, written.stderr


def steps(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_every_block_is_run_here() -> None:
    """There is none of another language or beyond those named above."""
    assert len(BLOCKS) == 11


def test_the_commands(folder: Path) -> None:
    """Each of them succeeds; the folder and the answer are whole."""
    done = shell(COMMANDS, folder)
    assert done.returncode == 0, done.stderr
    assert "h100-sxm-80gb" in done.stdout
    plan = json.loads((folder / "plan.json").read_text())
    assert {path.name for path in (folder / "training").iterdir()} >= set(plan["files"])
    assert (folder / "launch.sh").read_text() == plan["files"]["launch.sh"]


def test_exit_codes_are_those_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The same codes, which tests/cli goes through one by one."""
    with pytest.raises(SystemExit):
        cli.main(["plan", "--help"])
    helped = re.findall(r"^ +(\d+) ", capsys.readouterr().out.partition("exit codes:")[2], re.MULTILINE)
    assert re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE) == helped


@pytest.mark.parametrize("recipe", ["github", "gitlab"])
def test_the_check_of_a_pipeline(folder: Path, recipe: str) -> None:
    """Passes on what was written, fails on another file, and on a plan that no longer fits, each by its code."""
    lines = steps(yaml.safe_load(GITHUB)["jobs"]["plan"]) if recipe == "github" else yaml.safe_load(GITLAB)["training-plan"]["script"]
    (line,) = lines
    write_files(folder)
    assert shell(line, folder).returncode == 0
    config = folder / "ds_config.json"
    config.write_text(config.read_text().replace("1.0", "0.5", 1))
    differs = shell(line, folder)
    assert differs.returncode == 4
    assert '-  "gradient_clipping": 0.5' in differs.stdout
    (folder / "plan.yaml").write_text(NOT_FITTING)
    assert shell(line, folder).returncode == 2


def test_the_recipes_are_what_their_runners_read() -> None:
    """Triggers, jobs and steps of GitHub; a script of GitLab, where only the code of a tight plan is a warning."""
    workflow, pipeline = yaml.safe_load(GITHUB), yaml.safe_load(GITLAB)
    assert workflow[True] == ["pull_request"]  # YAML 1.1 reads "on" so, and GitHub does not
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        assert [set(step) for step in job["steps"]] == [{"uses"}, {"run"}]
        assert EXPRESSION.fullmatch(job["container"]["image"])
    assert pipeline["training-plan"]["allow_failure"] == {"exit_codes": 1}


def test_the_job_that_keeps_the_plan(folder: Path, url: str) -> None:
    """Twice for one commit is one plan, at the address that is printed."""
    job = yaml.safe_load(GITHUB)["jobs"]["keep"]
    given = {"SHARDPLAN_URL": url, "SHARDPLAN_API_KEY": "a key"}
    environment = {name: EXPRESSION.sub(lambda found: given[found[1]], value) for name, value in job["env"].items()}
    assert environment == given
    (line,) = steps(job)
    first, again = (shell(line, folder, **environment, GITHUB_REPOSITORY="team/model", GITHUB_SHA="abc") for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout
    with Client(url) as client:
        (kept,) = client.plans(name="team/model")
        assert first.stdout.endswith(f"{url}/plans/{kept.id}\n")


def test_the_makefile(folder: Path) -> None:
    """Writes, checks, and fails where a file was changed."""
    (folder / "Makefile").write_text(MAKEFILE)
    for target in ("plan", "check-plan"):
        done = run(["make", target], folder)
        assert done.returncode == 0, done.stderr
    launch = folder / "training" / "launch.sh"
    launch.write_text(launch.read_text().replace("set -euo pipefail", "set -e"))
    assert run(["make", "check-plan"], folder).returncode != 0


def test_several_questions(folder: Path) -> None:
    """One that does not fit fails all, and is named."""
    plans = folder / "plans"
    plans.mkdir()
    (plans / "small.yaml").write_text(SPEC)
    assert shell(SEVERAL, folder).returncode == 0
    (plans / "large.yaml").write_text(NOT_FITTING)
    done = shell(SEVERAL, folder)
    assert done.returncode == 1
    assert "plans/large.yaml: exit code 2" in done.stderr
    assert done.stdout.count("Fits") == 1


def test_curl(folder: Path, url: str) -> None:
    """Gets the file the command writes; where nothing fits it fails and writes nothing."""
    environment = {"SHARDPLAN_URL": url, "SHARDPLAN_API_KEY": "a key"}
    write_files(folder)
    (folder / "request.json").write_text(json.dumps(yaml.safe_load(SPEC)))
    done = shell(CURL, folder, **environment)
    assert done.returncode == 0, done.stderr
    (folder / "request.json").write_text(json.dumps(yaml.safe_load(NOT_FITTING)))
    (folder / "emitted.json").write_text("as it was")
    assert shell(CURL, folder, **environment).returncode == 22
    assert (folder / "emitted.json").read_text() == "as it was"


def test_the_python_example(folder: Path, url: str) -> None:
    """Runs as it stands, and says why where nobody answers or the request is refused."""
    (folder / "ask.py").write_text(PYTHON)
    done = run([sys.executable, "ask.py"], folder, SHARDPLAN_URL=url)
    assert done.returncode == 0, done.stderr
    first, *listed, last = done.stdout.splitlines()
    assert first.startswith("fits 0.")
    assert f"{url}/plans/" in listed[0]
    assert last.startswith("Nothing moved")
    (folder / "ask.py").write_text(PYTHON.replace("h100-sxm-80gb", "h1000"))
    refused = run([sys.executable, "ask.py"], folder, SHARDPLAN_URL=url)
    assert refused.returncode == 1
    assert refused.stderr.startswith("('cluster', 'pools', 0, 'gpu'): 'h1000'")


def test_sweeps(folder: Path, url: str) -> None:
    """By the service and here: the same four rows, and nothing else is left behind."""
    (folder / "sweep.yaml").write_text(GRID)
    before = set(folder.iterdir())
    done = shell(SWEEPS, folder, SHARDPLAN_URL=url)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in set(folder.iterdir()) - before} == {"rows.csv", "rows.jsonl"}
    there = list(csv.DictReader(io.StringIO((folder / "rows.csv").read_text())))
    here = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert [(row["axes"]["training.seq_len"], row["axes"]["cluster.pools.0.nodes"]) for row in here] == [
        (4096, 1),
        (4096, 2),
        (8192, 1),
        (8192, 2),
    ]
    assert [row["summary"] for row in there] == [row["summary"] for row in here]


def test_the_python_example_of_sweeps(folder: Path, url: str) -> None:
    """Runs as it stands, prints a line a row, and leaves no sweep behind."""
    (folder / "sweep.yaml").write_text(GRID)
    (folder / "sweep.py").write_text(SWEEP_PYTHON)
    done = run([sys.executable, "sweep.py"], folder, SHARDPLAN_URL=url)
    assert done.returncode == 0, done.stderr
    assert "4 of 4\n" in done.stdout
    assert done.stdout.count("{'training.seq_len': ") == 4
    assert len((folder / "rows.csv").read_text().splitlines()) == 5


def test_the_table_of_methods_is_whole() -> None:
    """Every public method, and every route that it asks."""
    table = TEXT.partition("| method | asks |")[2]
    named = set(re.findall(r"`(\w+)`", table))
    assert named == {name for name in dir(Client) if not name.startswith("_")} - {"close"}
    routes = {f"{o.method} {o.path}" for o in vars(operations).values() if isinstance(o, operations.Operation)}
    assert set(re.findall(r"`([A-Z]+ /[^`]*)`", table)) == routes
