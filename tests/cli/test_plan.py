"""``shardplan plan``: its exit codes, output and files, the same whether planned here or by a service."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app import cli
from app.cli.base import read
from app.client import Client
from app.services.plan import planned
from app.services.request import PlanRequest
from tests.cli.conftest import ZERO

Write = Callable[[dict[str, Any]], str]
ByVerdict = dict[str, dict[str, Any]]
FILES = {"ds_config.json", "ds_train.py", "accelerate.yaml", "launch.sh", "training_args.py"}


@pytest.mark.parametrize(
    ("verdict", "options", "code"),
    [
        ("fits", [], 0), ("tight", [], 1), ("does_not_fit", [], 2),
        ("fits", ["--require", "fits"], 0), ("tight", ["--require", "fits"], 1),
        ("fits", ["--require", "tight"], 0), ("tight", ["--require", "tight"], 0), ("does_not_fit", ["--require", "tight"], 2),
    ],
)  # fmt: skip
def test_the_exit_code_is_the_verdict(
    spec: Write, by_verdict: ByVerdict, where: list[str], capsys: pytest.CaptureFixture[str], verdict: str, options: list[str], code: int
) -> None:
    """Or 0 where that is good enough; the summary is the one line of output."""
    assert cli.main(["plan", spec(by_verdict[verdict]), *options, *where]) == code
    out, err = capsys.readouterr()
    assert out == planned(PlanRequest.model_validate(by_verdict[verdict])).plan.summary + "\n"
    assert err == ""


def test_json_is_the_whole_plan(spec: Write, where: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Field for field."""
    assert cli.main(["plan", spec(ZERO), "--json", *where]) == 0
    answered = json.loads(capsys.readouterr().out)
    ours = json.loads(json.dumps(planned(PlanRequest.model_validate(ZERO)).document()))
    assert answered.pop("search")["candidates"] == ours.pop("search")["candidates"]
    answered.pop("calibration", None)  # what runs measured on the service say, which nobody here knows
    assert answered == ours


def test_files(spec: Write, where: list[str], tmp_path: Path) -> None:
    """One by one, or all into a folder that need not exist; in the dialect asked for."""
    out = tmp_path / "some" / "folder"
    answer = planned(PlanRequest.model_validate(ZERO))
    for dialect in ("plain", "hf_auto"):
        texts = {name: artifact.text for name, artifact in answer.files(dialect).items()}
        single = ["-o", str(tmp_path / "ds_config.json"), "-o", str(tmp_path / "launch.sh")]
        assert cli.main(["plan", spec(ZERO), *single, "--all-into", str(out), "--dialect", dialect, *where]) == 0
        assert {path.name: path.read_text() for path in out.iterdir()} == texts
        assert set(texts) == FILES
        for name in ("ds_config.json", "launch.sh"):
            assert (tmp_path / name).read_text() == texts[name]


def test_standard_input(where: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """YAML or JSON, from a pipe."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(ZERO)))
    assert cli.main(["plan", "-", *where]) == 0
    assert capsys.readouterr().out.startswith("Fits")


def test_numbers_of_json_stay_numbers(tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also those that YAML would take for text; and nesting without end is refused."""
    path = tmp_path / "spec.json"
    shape = json.dumps(ZERO)[:-1] + ', "headroom_frac": 5e-2}'
    path.write_text(shape)
    assert cli.main(["plan", str(path), "--against", url, "--save", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["request"]["headroom_frac"] == 0.05
    assert read(path)["headroom_frac"] == 0.05
    path.write_text("[" * 100_000)
    assert cli.main(["plan", str(path)]) == 3
    assert "nested too deeply" in capsys.readouterr().err


def test_a_file_the_plan_has_not_stops_before_any_is_written(
    spec: Write, where: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And those that there are are named."""
    outputs = ["-o", str(tmp_path / "launch.sh"), "-o", str(tmp_path / "fsdp2_train.py")]
    assert cli.main(["plan", spec(ZERO), *outputs, *where]) == 3
    assert "fsdp2_train.py is not a file of this plan; it has" in capsys.readouterr().err
    assert not (tmp_path / "launch.sh").exists()


def test_where_nothing_fits_nothing_is_written(
    spec: Write, by_verdict: ByVerdict, where: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The code says why: 2, whatever was to be written or compared; what is there stays."""
    config = tmp_path / "ds_config.json"
    config.write_text("{}")
    options = ["-o", str(config), "--all-into", str(tmp_path / "all"), "--check", str(config)]
    assert cli.main(["plan", spec(by_verdict["does_not_fit"]), *options, *where]) == 2
    assert "nothing fits" in capsys.readouterr().err
    assert config.read_text() == "{}"
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trainig": {}}, "trainig: the request has no key 'trainig'; did you mean training?"),
        ({"objective": "speed"}, "objective: objective is 'speed'; it should be"),
        ({"cluster": {"pools": [{"gpu": "h1000"}]}}, "cluster.pools.0.gpu: 'h1000' is not a known GPU; the nearest are"),
        ({"model": {"preset": "llama-3.1-8b", "params": 1e9}}, "model: give exactly one of"),
    ],
)
def test_an_error_names_its_field(
    spec: Write, where: list[str], capsys: pytest.CaptureFixture[str], change: dict[str, Any], said: str
) -> None:
    """In the same words here and there, on standard error, with code 3."""
    assert cli.main(["plan", spec(ZERO | change), *where]) == 3
    out, err = capsys.readouterr()
    assert err.startswith(said)
    assert out == ""


@pytest.mark.parametrize(("text", "said"), [("[1]", "an object"), ("a: [", "expected"), ("when: 2026-11-30", "when|date is not JSON")])
def test_what_is_no_request(tmp_path: Path, where: list[str], capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    """A list, broken YAML, and a date, which JSON has not."""
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    assert cli.main(["plan", str(path), *where]) == 3
    assert re.search(said, capsys.readouterr().err)
    assert cli.main(["plan", str(tmp_path / "none.yaml"), *where]) == 3
    assert "none.yaml" in capsys.readouterr().err
    path.write_bytes(b"\xff\xfe\x00")
    assert cli.main(["plan", str(path), *where]) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--save"], "give --against URL"),
        (["--name", "x"], "--name: only with --save"),
        (["--note", "x", "--idempotency-key", "k"], "--note and --idempotency-key: only with --save"),
        (["--require", "luck"], "invalid choice"),
    ],
)
def test_options_that_do_not_go_together(spec: Write, capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    """64, with how the command goes."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(["plan", spec(ZERO), *options])
    assert stopped.value.code == 64
    assert said in capsys.readouterr().err


def test_help_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """Each of them, with what it means."""
    with pytest.raises(SystemExit):
        cli.main(["plan", "--help"])
    listed = capsys.readouterr().out.partition("exit codes:")[2]
    assert re.findall(r"^ +(\d+) ", listed, re.MULTILINE) == ["0", "1", "2", "3", "4", "64", "69"]


def test_a_plan_is_saved_and_its_address_printed(spec: Write, url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Once under one key; the token that deletes it is told on standard error, and files name the plan."""
    options = ["--against", url, "--save", "--name", "nightly", "--note", "words", "--idempotency-key", "commit 1"]
    assert cli.main(["plan", spec(ZERO), *options, "-o", str(tmp_path / "launch.sh")]) == 0
    out, err = capsys.readouterr()
    summary, address = out.splitlines()
    assert summary.startswith("Fits")
    assert address.startswith(f"{url}/plans/")
    plan_id, token = address.rpartition("/")[2], err.split()[-1]
    assert f"/plans/{plan_id}" in (tmp_path / "launch.sh").read_text()
    assert cli.main(["plan", spec(ZERO), *options]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [summary, address]
    assert err == ""
    with Client(url) as client:
        kept = client.get(plan_id)
        assert (kept.name, kept.note) == ("nightly", "words")
        client.delete(plan_id, token)
    assert cli.main(["plan", spec(ZERO), "--against", url, "--save", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["edit_token"]


def test_the_environment_names_the_service(
    spec: Write, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SHARDPLAN_URL does as --against does, and an empty one goes before it."""
    monkeypatch.setenv("SHARDPLAN_URL", url)
    assert cli.main(["plan", spec(ZERO), "--save"]) == 0
    monkeypatch.setenv("SHARDPLAN_URL", "http://127.0.0.1:9/none")
    assert cli.main(["plan", spec(ZERO), "--against", ""]) == 0
    assert capsys.readouterr().out.count("Fits") == 2


def test_a_reader_that_goes_away_is_no_error() -> None:
    """``| head`` of a long answer: nothing is printed about it."""
    script = f"'{sys.executable}' -m app.cli catalog models --json | head -n 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("{\n", "")
