"""Starts ranks of a script as copies of one process that has the libraries loaded: imports cost more than tiny models.

Reads one JSON object a line (script, arguments, folder, ranks, environment, paths, limit_s), writes one back: the exit
code of each rank. Nothing is shared between jobs: a copy is made before any process group, thread or random draw exists.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

PRELOADED = (
    "numpy", "torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel", "transformers", "transformers.integrations.deepspeed",
    "transformers.models.auto.modeling_auto", "transformers.models.llama.modeling_llama",
    "transformers.models.mixtral.modeling_mixtral", "peft", "accelerate", "deepspeed", "deepspeed.runtime.engine",
    "deepspeed.runtime.zero.muon.muon_optimizer",
)  # fmt: skip
GRACE_S = 5.0
"""What the other ranks get to say something of their own once one has failed."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def become_rank(job: dict[str, Any], rank: int, port: int) -> None:
    """What torchrun would have set up for one rank; output goes to rank-N.out and rank-N.err in the job's folder."""
    os.chdir(job["folder"])
    for number, name in enumerate((os.devnull, f"rank-{rank}.out", f"rank-{rank}.err")):
        with Path(name).open("wb" if number else "rb") as file:
            os.dup2(file.fileno(), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    ranks = str(job["ranks"])
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **job["environment"]})
    sys.argv = [job["script"], *job["arguments"]]
    sys.path[:0] = job["paths"]


def run_and_leave(script: str) -> None:
    """Run the script and end this process, without the seconds it takes to take down every imported module."""
    code: Any = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stopped:
        code = stopped.code or 0
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


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
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        raise SystemExit(f"{threads} threads run after the imports: copies of this process would hang")
    gc.freeze()  # a collection would touch, and so copy, all that the ranks share
    for line in sys.stdin:
        job = json.loads(line)
        port, pids = free_port(), []
        for rank in range(job["ranks"]):
            pid = os.fork()
            if pid == 0:
                become_rank(job, rank, port)
                run_and_leave(job["script"])
            pids.append(pid)
        print(json.dumps(wait_for(pids, job["limit_s"])), flush=True)


if __name__ == "__main__":
    main()
