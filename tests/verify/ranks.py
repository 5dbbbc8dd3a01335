"""Starts ranks of a script as copies of one process that has the libraries loaded: imports cost more than tiny models.

Reads one JSON object a line (script, arguments, folder, ranks, environment, paths, limit_s), writes one back: the exit
code of each rank. Nothing is shared between jobs: a copy is made before any process group, thread or random draw exists.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

PRELOADED = (
    "numpy", "torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel", "transformers", "transformers.integrations.deepspeed",
    "transformers.models.auto.modeling_auto", "transformers.models.llama.modeling_llama",
    "transformers.models.mixtral.modeling_mixtral", "peft", "accelerate", "deepspeed", "deepspeed.runtime.engine",
)  # fmt: skip
GRACE_S = 5.0
"""What the other ranks get to say something of their own once one has failed."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def become_rank(job: dict[str, Any], rank: int, port: int) -> None:
    """What torchrun would have set up for one rank; output goes to rank-N.log in the job's folder."""
    os.chdir(job["folder"])
    with Path(f"rank-{rank}.log").open("wb") as log, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    ranks = str(job["ranks"])
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **job["environment"]})
    sys.argv = [job["script"], *job["arguments"]]
    sys.path[:0] = job["paths"]


def wait_for(pids: list[int], limit_s: float) -> list[int]:
    """Exit codes by rank; all are killed at the limit, or a little after the first one failed."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + limit_s
    while len(codes) < len(pids):
        for pid in set(pids) - set(codes):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
                if codes[pid]:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        if time.monotonic() > deadline:
            for pid in set(pids) - set(codes):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return [codes[pid] for pid in pids]


def main() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise SystemExit(f"{threads} threads run after the imports: copies of this process would hang")
    for line in sys.stdin:
        job = json.loads(line)
        port, pids = free_port(), []
        for rank in range(job["ranks"]):
            pid = os.fork()
            if pid == 0:
                become_rank(job, rank, port)
                runpy.run_path(job["script"], run_name="__main__")
                return
            pids.append(pid)
        print(json.dumps(wait_for(pids, job["limit_s"])), flush=True)


if __name__ == "__main__":
    main()
