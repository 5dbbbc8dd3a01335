"""Runs emitted files on the real libraries: writes them to a folder, starts ranks on the CPU, reads what they print.

To check a plan that went through the planner: ``train(job, folder, ranks=2)`` with the job the service would emit from.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from app.emit import files_for
from app.emit.job import EmitJob

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = ROOT / ".cache" / "torch_extensions"
STEP = re.compile(r"^step (\d+) loss (\S+) grad_norm (\S+)", re.MULTILINE)
LIMIT_S = 240


@dataclass(frozen=True, slots=True)
class Step:
    """What a script printed for one optimizer step."""

    number: int
    loss: float
    grad_norm: float


def environment() -> dict[str, str]:
    """No network, one thread a rank, DeepSpeed on the CPU, compiled extensions kept apart from any other project's."""
    binaries = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(EXTENSIONS),
    }


@cache
def server() -> subprocess.Popen[str]:
    """The process whose copies the ranks are; it ends with this one, when nobody writes to it any more."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__).parent / "ranks.py")]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())


def run_ranks(script: Path, folder: Path, *, ranks: int, arguments: Sequence[str] = (), env: Mapping[str, str] | None = None) -> str:
    """Run a script on CPU ranks, as torchrun would; returns what rank 0 printed.

    Raises:
        AssertionError: a rank failed; the message ends with what each printed.
    """
    job = {"script": str(script), "arguments": list(arguments), "folder": str(folder), "ranks": ranks, "limit_s": LIMIT_S}
    job |= {"environment": dict(env or {}), "paths": [str(script.parent), str(ROOT)]}
    pipe = server()
    assert pipe.stdin is not None
    assert pipe.stdout is not None
    pipe.stdin.write(json.dumps(job) + "\n")
    pipe.stdin.flush()
    codes = json.loads(pipe.stdout.readline())
    logs = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("rank-*"))]
    assert codes == [0] * ranks, f"exit codes {codes}\n" + "\n".join(log[-5000:] for log in logs)
    return (folder / "rank-0.out").read_text(encoding="utf-8")


def run_command(command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a launcher or tool of a library in a process of its own; returns what it printed."""
    full = {**environment(), **(env or {})}
    result = subprocess.run(command, cwd=folder, env=full, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-6000:]
    return result.stdout


def steps_in(printed: str) -> list[Step]:
    """The steps a script reported."""
    return [Step(int(n), float(loss), float(norm)) for n, loss, norm in STEP.findall(printed)]


def write_files(job: EmitJob, folder: Path) -> Path:
    """Write all files of a job; returns its training script."""
    folder.mkdir(parents=True, exist_ok=True)
    files = files_for(job)
    for file in files:
        (folder / file.filename).write_text(file.text, encoding="utf-8")
    return next(folder / file.filename for file in files if file.filename.endswith("_train.py"))


def train(job: EmitJob, folder: Path, *, ranks: int, steps: int = 3, extra: Sequence[str] = ()) -> list[Step]:
    """Train the emitted script's smoke test on CPU ranks.

    Raises:
        AssertionError: a rank failed; the message ends with what it printed.
    """
    script = write_files(job, folder)
    return steps_in(run_ranks(script, folder, ranks=ranks, arguments=["--smoke-test", "--steps", str(steps), *extra]))


def finetune(job: EmitJob, folder: Path, *, ranks: int, source: Path, steps: int = 5, extra: Sequence[str] = ()) -> list[Step]:
    """Train from the weights and tokens in a folder, with a rate at which five steps learn something."""
    sizes = ["--seq-len", "64", "--micro-batch", "2", "--global-batch", "8"]
    rate = ["--lr", "1e-2", "--warmup-steps", "1", "--steps", str(steps)]
    arguments = ["--model", str(source), "--data", str(source / "tokens.bin"), *sizes, *rate, *extra]
    return steps_in(run_ranks(write_files(job, folder), folder, ranks=ranks, arguments=arguments))


def probe(name: str, folder: Path, *arguments: str) -> Any:
    """Run one of the probe_*.py programs in a process of its own and read the JSON on its last line."""
    printed = run_ranks(Path(__file__).parent / f"probe_{name}.py", folder, ranks=1, arguments=arguments)
    return json.loads(printed.strip().splitlines()[-1])


def forget_steps_after(folder: Path, step: int) -> None:
    """Remove later checkpoints, as if training had been interrupted there."""
    for path in folder.glob("step-*"):
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)
    if (folder / "latest").exists():
        (folder / "latest").write_text(f"step-{step:08d}", encoding="utf-8")
