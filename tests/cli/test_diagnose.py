"""``shardplan diagnose``: a log in, a few lines or the whole answer out, here or by a service."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from app import cli
from app.web.diagnosing import EXAMPLES

CASE = EXAMPLES["a log with its request"]["value"]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A log and a request."""
    log, spec = tmp_path / "run.log", tmp_path / "plan.json"
    log.write_text(CASE["text"])
    spec.write_text(json.dumps(CASE["request"]))
    return [str(log), "--request", str(spec)]


def test_lines_to_read(where: list[str], files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The cause, the tensor with its arithmetic, and what helps."""
    assert cli.main(["diagnose", *files, *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "fp32 optimizer partition" in lines[0]
    assert lines[1].endswith("P × 4 / 4 ranks = 13.90e9 × 4 / 4")
    assert any(line.startswith("  enough: ZeRO-3, frees") for line in lines)


def test_json(where: list[str], files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The answer of POST /diagnose."""
    assert cli.main(["diagnose", *files, "--json", *where]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["device"], found["tensor"]["bytes"]) == ("gpu", 13_900_000_000)


def test_standard_input_and_a_step_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a request it says what is missing."""
    monkeypatch.setattr("sys.stdin", io.StringIO("nothing"))
    assert cli.main(["diagnose", "-", "--step-s", "3"]) == 0
    assert "request.model" in capsys.readouterr().out


def test_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty log, a request that makes no sense, a file that is not there: 3, with the field."""
    empty, spec = tmp_path / "empty.log", tmp_path / "bad.json"
    empty.write_text("")
    spec.write_text('{"model": {"presets": "x"}}')
    assert cli.main(["diagnose", str(empty)]) == 3
    assert "text: there is neither a log" in capsys.readouterr().err
    assert cli.main(["diagnose", str(empty), "--request", str(spec)]) == 3
    assert "did you mean preset?" in capsys.readouterr().err
    assert cli.main(["diagnose", str(tmp_path / "none.log")]) == 3
