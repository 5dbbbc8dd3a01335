"""The oldest release of DeepSpeed that files are written for takes its files, and trains what the newest does.

It lies in a folder of its own (``make verify`` puts it there) and comes before the installed one on the path of these runs alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from app.catalog.keys import oldest, versions_for
from tests.emit.jobs import make_job
from tests.verify.agreement import assert_same
from tests.verify.conftest import Trainer
from tests.verify.harness import EXTENSIONS, ROOT, run_command, steps_in, write_files

OLDEST = oldest("deepspeed")
FOLDER = ROOT / ".cache" / f"deepspeed-{OLDEST}"
ADAM: dict[str, Any] = {"framework": "deepspeed", "optimizer_implementation": "foreach", "precision": "fp32"}
ENVIRONMENT = {"PYTHONPATH": str(FOLDER), "TORCH_EXTENSIONS_DIR": f"{EXTENSIONS}-{OLDEST}"}


def test_it_is_the_release_that_is_claimed(tmp_path: Path) -> None:
    """Otherwise the runs below would prove the newest again."""
    printed = run_command([sys.executable, "-c", "import deepspeed; print(deepspeed.__version__)"], tmp_path, ENVIRONMENT)
    assert printed.splitlines()[-1].startswith(OLDEST)


@pytest.mark.files("ds_train.py, ds_config.json", "torch", "transformers")
@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_the_oldest_release_trains_what_the_newest_trains(tmp_path: Path, trained: Trainer, strategy: str) -> None:
    """DeepSpeed of the oldest release claimed, on two ranks, with the file written for it."""
    job = make_job(**ADAM, strategy=strategy, job={"versions": versions_for({"deepspeed": OLDEST})})
    script = write_files(job, tmp_path)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    printed = run_command([*launch, str(script), "--smoke-test", "--steps", "3"], tmp_path, ENVIRONMENT)
    assert_same(steps_in(printed), trained(2, **ADAM, strategy=strategy))
