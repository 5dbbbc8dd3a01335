"""``shardplan sweep --against``: a service plans; whole files or none, and one sweep however often the command is started."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.client import Client, ServiceUnavailableError
from app.settings import AppSettings
from tests.cli.test_service import Scripted, scripted  # noqa: F401 (a fixture)
from tests.faults.service import BODY, ROOT, until
from tests.served import served
from tests.services.test_sweeps import SENSELESS, rows_of, wanted_of

MANY = 20_000
NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """Two requests, one of which makes no sense."""
    return lines_in(tmp_path / "in.jsonl", BODY, SENSELESS)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def lines_in(path: Path, *bodies: Any) -> Path:
    path.write_text("".join(f"{json.dumps(body)}\n" for body in bodies))
    return path


def many_in(path: Path) -> Path:
    return lines_in(path, *(BODY | {"training": BODY["training"] | {"seq_len": 256 + n % 4000}} for n in range(MANY)))


def command(spec: Path, out: Path, url: str, *more: str) -> list[str]:
    return ["sweep", str(spec), "-o", str(out), "--against", url, *more]


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def remembered(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out.with_name(f"{out.name}.part.json").read_text())
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def broken(monkeypatch: pytest.MonkeyPatch, method: str, *, after: bool) -> Callable[[], None]:
    """Have the connection break at a call of the client, before or after it was answered; gives what mends it."""
    whole: Callable[..., Any] = getattr(Client, method)

    def breaks(*args: Any, **named: Any) -> None:
        if after:
            whole(*args, **named)
        raise ServiceUnavailableError("the line is dead")

    monkeypatch.setattr(Client, method, breaks)
    return lambda: monkeypatch.setattr(Client, method, whole)


def test_lines_and_a_grid(asked: Path, tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows that planning here gives, in either format; nothing else is left behind."""
    out, table, grid = tmp_path / "out.jsonl", tmp_path / "out.csv", tmp_path / "grid.yaml"
    assert main(command(asked, out, url)) == 0
    assert rows(out) == rows_of(wanted_of(BODY, SENSELESS))
    said = capsys.readouterr().err
    assert f"2 requests at {url}/sweeps/" in said
    assert said.endswith(f"2 rows in {out}, 1 of them with an error\n")
    grid.write_text(json.dumps({"name": "lengths", "grid": {"base": BODY, "axes": {"training.seq_len": [256, 512]}}}))
    assert main(command(grid, table, url)) == 0
    assert [cell["training.seq_len"] for cell in csv.DictReader(io.StringIO(table.read_text()))] == ["256", "512"]
    assert names(tmp_path) == ["grid.yaml", "in.jsonl", "out.csv", "out.jsonl"]


@pytest.mark.parametrize("spec", ["in.jsonl", "in.json"])
def test_whole_plans(asked: Path, out: Path, url: str, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """--detail goes before what the file says; and the address may come from the environment."""
    path = asked.with_name(spec)
    path.write_text(json.dumps(BODY if spec == "in.jsonl" else {"requests": [BODY], "detail": "figures"}))
    monkeypatch.setenv("SHARDPLAN_URL", url)
    assert main(["sweep", str(path), "-o", str(out), "--detail", "plan"]) == 0
    assert "ddp_train.py" in rows(out)[0]["files"]


def test_what_is_wrong_is_named(asked: Path, out: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """3 and the field where the service refuses, and nothing is left, so that the mended file is taken; 64 for the command line."""
    lines_in(asked, BODY, BODY | {"trainig": {}})
    assert main(command(asked, out, url)) == 3
    assert "line.2.trainig: line 2: the request has no key 'trainig'; did you mean training?" in capsys.readouterr().err
    listed = asked.with_name("list.json")
    listed.write_text("[1]")
    assert main(command(listed, out, url)) == 3
    assert "is no object with requests or grid" in capsys.readouterr().err
    for more in (["--against", url, "--jobs", "2"], ["--cancel"]):
        with pytest.raises(SystemExit) as refused:
            main(["sweep", str(asked), "-o", str(out), *more])
        assert refused.value.code == 64
    assert names(out.parent) == ["in.jsonl", "list.json"]


def test_nobody_answers(asked: Path, out: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """69, and what was not made does not stand in the way of another service."""
    assert main(command(asked, out, NOBODY)) == 69
    said = capsys.readouterr().err
    assert f"{NOBODY} does not answer" in said
    assert "the same command goes on with it" in said
    assert main(command(asked, out, url)) == 0
    assert names(out.parent) == ["in.jsonl", "out.jsonl"]


def test_a_lost_answer_makes_no_second_sweep(
    asked: Path, out: Path, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key was remembered before; but the token is lost, which is said where it is wanted."""
    mend = broken(monkeypatch, "sweep_lines", after=True)
    assert main(command(asked, out, url)) == 69
    key = remembered(out)["key"]
    mend()
    assert main(command(asked, out, url, "--cancel")) == 3
    assert "its edit token was lost on its way" in capsys.readouterr().err
    with Client(url) as client:
        made = client.sweep_lines(asked.read_bytes().split(b"\n"), idempotency_key=key)
        assert made.edit_token is None
    assert main(command(asked, out, url)) == 0
    assert f"{url}/sweeps/{made.id}" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["wait_for_sweep", "sweep_jsonl"])
def test_the_same_command_goes_on(
    asked: Path, out: Path, url: str, method: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same sweep, whether it broke while it waited or in the middle of the rows; the file that was there stays till then."""
    out.write_text("as it was")
    mend = broken(monkeypatch, method, after=True)
    assert main(command(asked, out, url)) == 69
    said = capsys.readouterr().err
    sweep_id = remembered(out)["sweep_id"]
    assert f"this does not end the sweep, {url}/sweeps/{sweep_id}; the same command waits for it again" in said
    assert out.read_text() == "as it was"
    assert out.with_name("out.jsonl.part.json").stat().st_mode & 0o777 == 0o600
    mend()
    assert main(command(asked, out, url)) == 0
    assert f"/sweeps/{sweep_id}" in capsys.readouterr().err
    assert len(rows(out)) == 2
    assert names(out.parent) == ["in.jsonl", "out.jsonl"]


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_fewer_rows_than_there_are(
    asked: Path, url: str, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download that ends early without anybody saying so is no file."""
    out = asked.with_name(f"out.{kind}")
    monkeypatch.setattr(
        Client, f"sweep_{kind}", lambda _self, _id, file: file.write(b"index,verdict\n" if kind == "csv" else b'{"index":0}\n')
    )
    assert main(command(asked, out, url)) == 69
    assert f"{url} gave {0 if kind == 'csv' else 1} of 2 rows" in capsys.readouterr().err
    assert not out.exists()


def test_another_sweep_is_left_alone(
    asked: Path, out: Path, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is remembered of it, and rows that were planned here: exit code 3, and what to do. The token goes to its service only."""
    out.with_name("out.jsonl.part").write_text('{"sweep":"here"}\n')
    assert main(command(asked, out, url)) == 3
    assert "--against '' goes on with it" in capsys.readouterr().err
    out.with_name("out.jsonl.part").unlink()
    mend = broken(monkeypatch, "wait_for_sweep", after=False)
    assert main(command(asked, out, url)) == 69
    mend()
    before = remembered(out)
    for spec, where in ((lines_in(out.with_name("other.jsonl"), BODY), url), (asked, NOBODY)):
        assert main(command(spec, out, where)) == 3
        assert f"is of another sweep, {url}/sweeps/{before['sweep_id']}" in capsys.readouterr().err
    assert main(command(asked, out, NOBODY, "--cancel")) == 3
    assert f"give --against {url}" in capsys.readouterr().err
    assert remembered(out) == before
    out.with_name("out.jsonl.part.json").write_text("{}")
    assert main(command(asked, out, url)) == 3
    assert "remove it to begin anew" in capsys.readouterr().err


def test_a_sweep_that_is_gone_is_made_anew(
    asked: Path, out: Path, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after its time; --cancel has nothing to do then."""
    spoilt = out.with_name("out.jsonl.part.json")
    mend = broken(monkeypatch, "wait_for_sweep", after=False)
    assert main(command(asked, out, url)) == 69
    mend()
    was, text = remembered(out), spoilt.read_text()
    with Client(url) as client:
        client.delete_sweep(was["sweep_id"], was["edit_token"])
    assert main(command(asked, out, url, "--cancel")) == 0
    assert names(out.parent) == ["in.jsonl"]
    spoilt.write_text(text)
    capsys.readouterr()
    assert main(command(asked, out, url)) == 0
    assert f"sweep {was['sweep_id']} is not there any more; this begins anew" in capsys.readouterr().err
    assert len(rows(out)) == 2


def test_cancelled_by_command(
    asked: Path, out: Path, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends there and is forgotten here; one that is done is not, and one that was cancelled elsewhere is no success."""
    assert main(command(asked, out, url, "--cancel")) == 3
    assert "no sweep is waited for" in capsys.readouterr().err
    mend = broken(monkeypatch, "wait_for_sweep", after=True)
    assert main(command(asked, out, url)) == 69
    assert main(command(asked, out, url, "--cancel")) == 0
    assert "was done already" in capsys.readouterr().err
    mend()
    assert main(command(asked, out, url)) == 0
    many = many_in(out.with_name("many.jsonl"))
    mend = broken(monkeypatch, "wait_for_sweep", after=False)
    for way in ("command", "elsewhere"):
        assert main(command(many, out, url)) == 69
        was = remembered(out)
        capsys.readouterr()
        if way == "command":
            assert main(command(many, out, url, "--cancel")) == 0
        else:
            mend()
            with Client(url) as client:
                client.cancel_sweep(was["sweep_id"], was["edit_token"])
            assert main(command(many, out, url)) == 3
        said = capsys.readouterr().err
        assert f"rows of 20,000 are at {url}/sweeps/{was['sweep_id']}/results until 20" in said
        assert "cancelled; its " in said
        with Client(url) as client:
            assert client.get_sweep(was["sweep_id"]).state == "cancelled"
        assert names(out.parent) == ["in.jsonl", "many.jsonl", "out.jsonl"]


def test_interrupted_and_started_again(tmp_path: Path) -> None:
    """Ctrl-C: exit code 130, the sweep goes on, and the same command waits for that one; no token is shown."""
    many, out = many_in(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    settings = AppSettings(database_url=f"sqlite:///{tmp_path}/service.db", log_format="text")
    with served(settings) as url:
        begin = [sys.executable, "-m", "app.cli", *command(many, out, url)]
        environment = os.environ | {"SHARDPLAN_API_KEY": "a key"}
        process = subprocess.Popen(begin, cwd=ROOT, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        until(lambda: out.with_name("out.jsonl.part.json").exists() and remembered(out)["sweep_id"])
        process.send_signal(signal.SIGINT)
        said, err = process.communicate(timeout=30)
        was = remembered(out)
        assert (process.returncode, said) == (130, "")
        assert (
            f"this does not end the sweep, {url}/sweeps/{was['sweep_id']}; the same command waits for it again, with --cancel it ends"
            in err
        )
        assert "Traceback" not in err
        assert was["edit_token"] not in err
        assert "a key" not in json.dumps(was)
        assert not out.exists()
        with Client(url) as client:
            assert client.get_sweep(was["sweep_id"]).state in ("queued", "running")
        assert main(command(many, out, url, "--cancel")) == 0


@pytest.mark.parametrize(("status", "code", "left"), [(500, 69, True), (401, 3, False)])
def test_a_service_that_breaks_or_refuses(scripted: Scripted, asked: Path, out: Path, status: int, code: int, left: bool) -> None:  # noqa: F811
    """Where it may have kept the sweep before it broke, the key is remembered; where it refused there is none."""
    scripted.answers(status, {"detail": "no"})
    assert main(command(asked, out, scripted.url)) == code
    assert out.with_name("out.jsonl.part.json").exists() is left
