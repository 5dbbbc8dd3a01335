"""``shardplan plan --check``: a committed file that is not what is emitted now fails the pipeline, with a diff."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from app import cli
from app.cli.committed import difference
from tests.cli.conftest import ZERO

Write = Callable[[dict[str, Any]], str]


@pytest.fixture
def committed(spec: Write, tmp_path: Path) -> Path:
    """Every file of the plan, as committed."""
    folder = tmp_path / "committed"
    assert cli.main(["plan", spec(ZERO), "--all-into", str(folder)]) == 0
    return folder


def checks(folder: Path) -> list[str]:
    return [argument for path in sorted(folder.iterdir()) for argument in ("--check", str(path))]


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def test_files_as_emitted_pass(committed: Path, spec: Write, where: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """All of them, with nothing said beside the summary."""
    capsys.readouterr()
    assert cli.main(["plan", spec(ZERO), *checks(committed), *where]) == 0
    assert capsys.readouterr().out.startswith("Fits")


def test_who_wrote_it_does_not_matter(committed: Path, spec: Write, where: list[str]) -> None:
    """Another engine's header, another layout, another order of keys, comments in YAML."""
    config, accelerate = committed / "ds_config.json", committed / "accelerate.yaml"
    config.write_text(json.dumps(dict(reversed(json.loads(config.read_text()).items()))))
    accelerate.write_text("# ours\n" + yaml.safe_dump(yaml.safe_load(accelerate.read_text()), default_flow_style=True))
    for name in ("ds_train.py", "launch.sh", "training_args.py"):
        edit(committed / name, "# Written by Shardplan ", "# Plan: nightly, /plans/abc\n# Written by Shardplan 99.")
    assert cli.main(["plan", spec(ZERO), *checks(committed), *where]) == 0


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("ds_config.json", '"gradient_clipping": 1.0', '"gradient_clipping": 2.0'),
        ("ds_config.json", "true", "1"),
        ("ds_config.json", "}", ""),
        ("accelerate.yaml", "num_machines: 1", "num_machines: 2"),
        ("accelerate.yaml", "num_machines: 1", "num_machines: [1"),
        ("launch.sh", "set -euo pipefail", "set -eu"),
        ("ds_train.py", '"""Trains', '"""Train'),
        ("training_args.py", "import", "import os, "),
    ],
)
def test_another_content_fails(
    committed: Path, spec: Write, where: list[str], capsys: pytest.CaptureFixture[str], name: str, before: str, after: str
) -> None:
    """Code 4, and a unified diff on standard output; the file stays as it is."""
    edit(committed / name, before, after)
    edited = (committed / name).read_text()
    capsys.readouterr()
    assert cli.main(["plan", spec(ZERO), *checks(committed), *where]) == 4
    out, err = capsys.readouterr()
    assert out.splitlines()[1] == f"--- {committed / name}"
    assert out.count("\n--- ") == out.count("\n+++ ") == 1
    assert err == ""
    assert (committed / name).read_text() == edited


def test_a_diff_beside_json_goes_to_standard_error(committed: Path, spec: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """So that the plan stays JSON."""
    edit(committed / "launch.sh", "set -euo pipefail", "set -eu")
    capsys.readouterr()
    assert cli.main(["plan", spec(ZERO), "--json", *checks(committed)]) == 4
    out, err = capsys.readouterr()
    assert json.loads(out)["verdict"] == "fits"
    assert "+set -euo pipefail" in err


def test_it_can_be_compared_and_then_written(committed: Path, spec: Write) -> None:
    """The code still says that it was another; the next check passes."""
    config = committed / "ds_config.json"
    edit(config, "1.0", "2.0")
    assert cli.main(["plan", spec(ZERO), "--check", str(config), "-o", str(config)]) == 4
    assert cli.main(["plan", spec(ZERO), "--check", str(config)]) == 0


def test_the_dialect_counts(committed: Path, spec: Write) -> None:
    """A file for the Trainer is another file."""
    assert cli.main(["plan", spec(ZERO), "--dialect", "hf_auto", "--check", str(committed / "ds_config.json")]) == 4
    assert cli.main(["plan", spec(ZERO), "--dialect", "hf_auto", "-o", str(committed / "ds_config.json")]) == 0
    assert cli.main(["plan", spec(ZERO), "--dialect", "hf_auto", *checks(committed)]) == 0


def test_a_tight_plan_with_another_file_differs(by_verdict: dict[str, dict[str, Any]], spec: Write, committed: Path) -> None:
    """4 goes before 1: that the file is out of date has to be mended first."""
    assert cli.main(["plan", spec(by_verdict["tight"]), "--check", str(committed / "ds_config.json")]) == 4


def test_a_file_that_is_not_there_or_not_of_the_plan(committed: Path, spec: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """3, with its name."""
    for name in ("fsdp2_train.py", "missing/ds_config.json"):
        assert cli.main(["plan", spec(ZERO), "--check", str(committed / name)]) == 3
        assert name in capsys.readouterr().err


def test_comments_after_the_head_of_a_script_count() -> None:
    """Only the block that says who wrote it is left out."""
    head = "#!/usr/bin/env bash\n# Written by Shardplan 1\n"
    assert difference(f"{head}#\n# Run it\n", "#!/usr/bin/env bash\n# Written by Shardplan 2\n# More\n#\n# Run it\n", "launch.sh") == ""
    assert "+# Run it here" in difference(f"{head}#\n# Run it\n", f"{head}#\n# Run it here\n", "launch.sh")
    assert difference("# a", "# b", "launch.sh") == ""
