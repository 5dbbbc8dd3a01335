"""How fast the service answers over HTTP with one worker, and where its time goes (``make bench ARGS=http``).

Starts the service itself, on a free port with a database of its own. One client in turn gives the latency, a few at
once give plans/s; both keep their connections, as a script or a proxy does. Pinned requests that do not fit are counted
apart, for their answer holds a search for ways out. The phases are timed in process, one after another.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise, product
from typing import Any

import httpx
import orjson

from app.domain.search.planner import make_plan
from app.services.plan import answer_of
from app.services.request import PlanRequest
from app.services.resolve import resolve

CLIENTS, TURNS, LOAD_S, PHASE_TURNS = 4, 200, 2.0, 60
PHASES = ("validation", "resolve", "search", "files", "document", "JSON")
EIGHT_GPUS: dict[str, Any] = {
    "model": {"preset": "llama-3.1-8b"},
    "training": {"seq_len": 8192, "global_batch": 64},
    "cluster": {"pools": [{"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": 1}]},
}
_SHAPES: tuple[dict[str, Any], ...] = (
    {"num_layers": 32, "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "ffn_hidden_size": 14336, "vocab_size": 128256},
    {"num_layers": 24, "hidden_size": 2048, "num_heads": 16, "ffn_hidden_size": 8192, "vocab_size": 50257, "gated_mlp": False},
    {"num_layers": 32, "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "ffn_hidden_size": 14336, "vocab_size": 32000,
     "num_experts": 8, "experts_per_token": 2},
)  # fmt: skip
_STRATEGIES = (
    ("deepspeed", "zero2", "none"), ("deepspeed", "zero3", "none"), ("deepspeed", "zero3", "cpu"),
    ("fsdp2", "fsdp_full", "none"), ("fsdp2", "fsdp_grad_op", "none"), ("ddp", "ddp", "none"),
)  # fmt: skip


def main() -> None:
    """Print latency, throughput and the split of the server's time."""
    cases = {"8-GPU plan": [EIGHT_GPUS], "pinned, fits": [], "pinned, does not fit": []}
    with service() as url, httpx.Client(base_url=url) as client:
        for body in pinned_requests():
            fits = client.post("/plan", json=body).raise_for_status().json()["verdict"] != "does_not_fit"
            cases["pinned, fits" if fits else "pinned, does not fit"].append(body)
        print(f"{'HTTP, one worker':22s}{'requests':>9s}{'p50 ms':>9s}{'p95 ms':>9s}{f'plans/s of {CLIENTS} clients':>25s}")
        alone = {}
        for name, bodies in cases.items():
            alone[name] = [_timed(client, bodies[turn % len(bodies)]) for turn in range(TURNS)][len(bodies) :]
            per_s = statistics.median(_throughput(url, bodies) for _ in range(3))
            print(f"{name:22s}{len(bodies):9d}{_ms(alone[name], 50):9.2f}{_ms(alone[name], 95):9.2f}{per_s:25.0f}")
    print(f"\n{'ms in the server':22s}" + "".join(f"{name:>12s}" for name in (*PHASES, "sum", "rest: HTTP")))
    for name, bodies in cases.items():
        split = phases(bodies)
        rest = statistics.median(alone[name]) - sum(split)
        print(f"{name:22s}" + "".join(f"{1000 * s:12.2f}" for s in (*split, sum(split), rest)))


def pinned_requests() -> list[dict[str, Any]]:
    """Requests that leave the planner nothing to choose, each of them different."""
    made = product(_SHAPES, _STRATEGIES, ("none", "full"), (1, 4))
    return [_pinned(shape, strategy, checkpointing, nodes) for shape, strategy, checkpointing, nodes in made]


def _pinned(shape: dict[str, Any], strategy: tuple[str, str, str], checkpointing: str, nodes: int) -> dict[str, Any]:
    framework, name, offload = strategy
    return {
        "model": {"shape": shape},
        "training": {
            "seq_len": 2048, "micro_batch": 2, "grad_accum": 4, "precision": "bf16", "optimizer": "adamw",
            "activation_checkpointing": checkpointing, "activation_offload": False, "attention": "flash", "compile": False,
        },
        "cluster": {"pools": [{"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": nodes}]},
        "constraints": {
            "framework": framework, "strategy": name, "tensor_parallel": 1, "pipeline_parallel": 1, "sequence_parallel": 1,
            "offload_optimizer": offload, "offload_parameters": offload,
        },
    }  # fmt: skip


def phases(bodies: Sequence[dict[str, Any]]) -> list[float]:
    """Median seconds of each phase of an answer, in process, in the order of ``PHASES``."""
    rows = [_phases(orjson.dumps(body)) for _ in range(max(2, PHASE_TURNS // len(bodies))) for body in bodies]
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def _phases(body: bytes) -> list[float]:
    at = [time.perf_counter()]
    request = PlanRequest.model_validate(orjson.loads(body))
    at.append(time.perf_counter())
    resolved = resolve(request)
    at.append(time.perf_counter())
    plan = make_plan(resolved.question)
    at.append(time.perf_counter())
    answer = answer_of(request, resolved, plan)
    at.append(time.perf_counter())
    document = answer.document()
    at.append(time.perf_counter())
    orjson.dumps(document, default=str)
    at.append(time.perf_counter())
    return [end - start for start, end in pairwise(at)]


def _timed(client: httpx.Client, body: dict[str, Any]) -> float:
    started = time.perf_counter()
    client.post("/plan", json=body).raise_for_status()
    return time.perf_counter() - started


def _throughput(url: str, bodies: list[dict[str, Any]]) -> float:
    """Plans/s that a few clients get together, each on its own connection."""
    end = time.perf_counter() + LOAD_S

    def work(turn: int) -> int:
        done = 0
        with httpx.Client(base_url=url) as client:
            while time.perf_counter() < end:
                client.post("/plan", json=bodies[(turn + CLIENTS * done) % len(bodies)]).raise_for_status()
                done += 1
        return done

    started = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        done = sum(pool.map(work, range(CLIENTS)))
    return done / (time.perf_counter() - started)


def _ms(seconds: Sequence[float], percentile: int) -> float:
    return 1000 * statistics.quantiles(seconds, n=100)[percentile - 1]


@contextmanager
def service(settings: dict[str, str] | None = None) -> Iterator[str]:
    """The service as ``make run`` starts it, until the block ends; gives its address. It has a SQLite file of its own if not told else."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        own = {"SHARDPLAN_PORT": str(port), "SHARDPLAN_HOST": "127.0.0.1", "SHARDPLAN_DATABASE_URL": f"sqlite:///{folder}/bench.db"}
        known = os.environ | own | (settings or {})
        process = subprocess.Popen([sys.executable, "-m", "app.main"], env=known, stderr=subprocess.DEVNULL)
        try:
            yield _ready(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait(timeout=30)


def _ready(url: str) -> str:
    for _ in range(300):
        try:
            httpx.get(f"{url}/healthz").raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            return url
    raise RuntimeError("the service did not start")


if __name__ == "__main__":
    main()
