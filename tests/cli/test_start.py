"""How the command starts: with the module of what was typed alone, and able to be interrupted from the first moment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app import cli
from app.cli import command, plan
from app.cli.commands import COMMANDS
from app.web.schemas import EXAMPLE_REQUEST

_SCRIPT = """
import contextlib, io, sys
from app.cli import main

for line in (["--version"], ["--help"], ["catalog", "gpus"], ["plan", sys.argv[1]], ["audit", sys.argv[2], "--for", sys.argv[1]]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(line)
    print(line[0], *(name for name in sys.argv[3:] if name in sys.modules))
"""
_NEVER = ("fastapi", "sqlalchemy", "alembic", "procrastinate", "httpx", "limits")
_FOR_PLANS = ("pydantic", "yaml", "numpy", "jinja2")


def test_a_command_imports_what_it_needs(tmp_path: Path) -> None:
    """To say its version or to list GPUs takes no library, to plan or to audit none of the service's."""
    spec, config = tmp_path / "spec.json", tmp_path / "ds_config.json"
    spec.write_text(json.dumps(EXAMPLE_REQUEST))
    config.write_text('{"zero_optimization": {"stage": 3}}')
    start = [sys.executable, "-c", _SCRIPT, str(spec), str(config), *_NEVER, *_FOR_PLANS]
    said = subprocess.run(start, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    planned = " ".join(_FOR_PLANS)
    assert said == ["--version", "--help", "catalog", f"plan {planned}", f"audit {planned}"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_listed_and_helps(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its line in the list, and its own help, which comes from its module."""
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as left:
        cli.main(["--help"])
    assert left.value.code == 0
    assert f"    {name} ".ljust(24) + COMMANDS[name][1] in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        cli.main([name, "--help"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: shardplan {name} ")


def test_every_module_with_commands_is_in_the_table() -> None:
    """A command that the table left out could not be typed."""
    defined = {
        (name, path.stem)
        for path in Path(cli.__file__).parent.glob("*.py")
        for name in _adds(path)
        if name != "against"  # the option that several share
    }
    assert defined == {(name, module) for name, (module, _) in COMMANDS.items()}


def _adds(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("def add_").partition("(")[0] for line in lines if line.startswith("def add_")]


def test_interrupted_while_it_imports_it_says_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C before the command has begun ends it at once, with the exit code of Ctrl-C later."""
    swallowed: list[str] = []

    def interrupted(name: str) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        swallowed.append(name)

    monkeypatch.setattr(command, "import_module", interrupted)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as left:
        cli.main(["plan", "spec.json"])
    assert left.value.code == 130
    assert not swallowed
    assert capfd.readouterr() == ("", "")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_that_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``nohup`` and shells ask of what they start in the background."""
    found: list[object] = []
    monkeypatch.setattr(command, "import_module", lambda _: found.append(signal.getsignal(signal.SIGINT)) or plan)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert cli.main(["plan", "no-such.json"]) == 3
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == [signal.SIG_IGN]
