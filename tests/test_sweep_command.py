"""``shardplan sweep``: rows of a file's requests in a file, resumed where it was interrupted."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from app.cli import main
from app.services.sweeps.rows import CHUNK
from tests.faults.service import BODY, ROOT, until
from tests.services.test_sweeps import SENSELESS, VARIED, rows_of, wanted_of

GRID = {"name": "lengths", "grid": {"base": VARIED[1], "axes": {"training.seq_len": [2048, 4096]}}}


def lines_of(path: Path) -> list[Any]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def written(path: Path, *bodies: Any) -> str:
    path.write_bytes(b"\n".join(map(orjson.dumps, bodies)))
    return str(path)


def many(count: int) -> list[dict[str, Any]]:
    return [BODY | {"training": BODY["training"] | {"seq_len": 256 + n}} for n in range(count)]


def test_lines_and_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows a service would give, in either format; an error is counted, and no failure of the command."""
    out, table = tmp_path / "rows.jsonl", tmp_path / "rows.csv"
    assert main(["sweep", written(tmp_path / "in.jsonl", BODY, SENSELESS), "-o", str(out), "--jobs", "1"]) == 0
    assert lines_of(out) == rows_of(wanted_of(BODY, SENSELESS))
    assert "2 rows in" in (said := capsys.readouterr().err)
    assert "1 of them with an error" in said
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(GRID))
    assert main(["sweep", str(tmp_path / "grid.yaml"), "-o", str(table), "--jobs", "2"]) == 0
    cells = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [c["training.seq_len"] for c in cells] == [c["recommended.settings.seq_len"] for c in cells] == ["2048", "4096"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["grid.yaml", "in.jsonl", "rows.csv", "rows.jsonl"]


def test_whole_plans(tmp_path: Path) -> None:
    """With --detail plan, which goes before what the file says."""
    out = tmp_path / "rows.jsonl"
    assert main(["sweep", written(tmp_path / "in.json", {"requests": [BODY]}), "-o", str(out), "--detail", "plan", "--jobs", "1"]) == 0
    assert "ddp_train.py" in lines_of(out)[0]["files"]


def test_what_is_wrong_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, the line and the field; nothing is written."""
    wrong = BODY | {"training": {"seq_lan": 1}}
    assert main(["sweep", written(tmp_path / "in.jsonl", BODY, wrong), "-o", str(tmp_path / "out.jsonl")]) == 3
    assert "line.2.training.seq_lan: line 2: training has no key 'seq_lan'; did you mean seq_len?" in capsys.readouterr().err
    assert main(["sweep", written(tmp_path / "in.json", {"grid": {"base": BODY, "axes": {"a.b.c": []}}}), "-o", str(tmp_path / "o")]) == 3
    assert "there is no request in it" in capsys.readouterr().err
    assert main(["sweep", str(tmp_path / "none.json"), "-o", str(tmp_path / "o")]) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.json", "in.jsonl"]


def test_a_part_of_another_sweep_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is somebody's work: exit code 3, and what to do."""
    part = tmp_path / "out.jsonl.part"
    part.write_bytes(b'{"sweep":"another"}\n{"index":0}\n')
    assert main(["sweep", written(tmp_path / "in.jsonl", BODY), "-o", str(tmp_path / "out.jsonl")]) == 3
    assert "remove it to begin anew" in capsys.readouterr().err
    assert part.read_bytes() == b'{"sweep":"another"}\n{"index":0}\n'


def _children_of(session: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            ended = (path / "stat").read_text().rpartition(") ")[2].startswith("Z")
            if os.getsid(int(path.name)) == session and not ended:
                found.append(int(path.name))
        except (ProcessLookupError, FileNotFoundError):
            continue
    return found


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_killed_and_started_again(tmp_path: Path, kind: str) -> None:
    """kill -9 in the middle: its processes go too, what is done is kept, half a line is not, and every row is there once."""
    count, out = 6 * CHUNK, tmp_path / f"out.{kind}"
    command = ["sweep", written(tmp_path / "in.jsonl", *many(count)), "-o", str(out), "--jobs", "2"]
    part = tmp_path / f"out.{kind}.part"
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli", *command], cwd=ROOT, env=os.environ, stderr=subprocess.DEVNULL, start_new_session=True
    )
    until(lambda: part.exists() and part.read_bytes().count(b"\n") > CHUNK)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    until(lambda: not _children_of(process.pid))
    assert not out.exists()
    done = part.read_bytes().count(b"\n") - 1
    assert done < count
    with part.open("ab") as file:
        file.write(b'{"index":4711,"half a li')
    before = part.read_bytes()[:1000]
    assert main(command) == 0
    if kind == "jsonl":
        rows = lines_of(out)
        assert [(row["index"], row["recommended"]["settings"]["seq_len"]) for row in rows] == [(n, 256 + n) for n in range(count)]
        assert out.read_bytes().startswith(before.split(b"\n")[1][:500])
    else:
        found = list(csv.DictReader(io.StringIO(out.read_text())))
        assert [(row["index"], row["recommended.settings.seq_len"]) for row in found] == [(str(n), str(256 + n)) for n in range(count)]
    assert not part.exists()


def test_workers_need_postgresql(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On SQLite the service does the work; the command says so with the code of a wrong setting."""
    monkeypatch.setenv("SHARDPLAN_DATABASE_URL", "sqlite:///x.db")
    assert main(["worker"]) == 64
    assert "workers need PostgreSQL" in capsys.readouterr().err
