"""``shardplan probe`` and ``measure``: a snippet that is Python, and its report sent to the plan that was run."""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path

import pytest

from app.cli import main
from app.client import Client
from app.settings import AppSettings
from app.web.schemas import EXAMPLE_REQUEST
from tests.served import served

HOSTILE = 'x\'; rm -rf ~ #\n"""\nimport os\u202e'


def test_the_snippet_is_python_whatever_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Names are words of a shell or of a comment; the address is that of the plan."""
    assert main(["probe", "--plan-id", "abc", "--url", "https://plans.example.org/"]) == 0
    text = capsys.readouterr().out
    assert "--data-binary @shardplan-run.json https://plans.example.org/plans/abc/measurements\n" in text
    plain = ast.dump(ast.parse(text))
    assert main(["probe", "--plan-id", HOSTILE, "--url", HOSTILE]) == 0
    tree = ast.parse(capsys.readouterr().out)
    assert [node.names[0].name for node in ast.walk(tree) if isinstance(node, ast.Import)].count("os") == 1
    assert plain.count("FunctionDef") == ast.dump(tree).count("FunctionDef")
    assert main(["probe"]) == 0
    assert "/plans/PLAN_ID/measurements" in capsys.readouterr().out


def test_a_report_is_sent_from_a_file_and_from_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says by how much the prediction was off, and what it is calibrated by now."""
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"peak_bytes": 70 * 2**30, "counter": "reserved", "step_s": 10.0}), encoding="utf-8")
    with served(AppSettings(database_url=f"sqlite:///{tmp_path / 'service.db'}", log_format="text")) as url, Client(url) as client:
        saved = client.save(EXAMPLE_REQUEST)
        assert main(["measure", saved.id, str(file), "--against", url]) == 0
        said = capsys.readouterr().out
        assert "the peak was predicted -5.5 % off; the step was predicted -7.9 % off; calibrated by 1 run here" in said
        monkeypatch.setattr("sys.stdin", io.StringIO(file.read_text(encoding="utf-8")))
        assert main(["measure", saved.id, "-", "--against", url, "--idempotency-key", "k"]) == 0
        assert len(client.measurements(saved.id).items) == 2
        client.delete_measurement(saved.id, client.measurements(saved.id).items[0].id, saved.edit_token or "")
        assert client.plan(EXAMPLE_REQUEST).calibration == client.measurements(saved.id).calibration
        left_out = client.plan(EXAMPLE_REQUEST, calibrate=False).calibration
        assert left_out is not None
        assert left_out.applied is False
        file.write_text("[]", encoding="utf-8")
        capsys.readouterr()
        assert main(["measure", saved.id, str(file), "--against", url]) == 3
        assert "holds no JSON object" in capsys.readouterr().err
        file.write_text('{"step_s": 0}', encoding="utf-8")
        assert main(["measure", saved.id, str(file), "--against", url]) == 3
        assert "step_s: step_s is 0; it should be greater than 0" in capsys.readouterr().err


def test_a_service_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else keeps plans."""
    monkeypatch.delenv("SHARDPLAN_URL", raising=False)
    with pytest.raises(SystemExit) as left:
        main(["measure", "abc", str(tmp_path / "run.json")])
    assert left.value.code == 64
