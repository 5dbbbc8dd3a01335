"""How fast the search is, in process: candidates, median milliseconds, peak memory (``make bench ARGS=search``)."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from typing import Any

from app.domain.search.planner import make_plan
from app.services.request import PlanRequest
from app.services.resolve import resolve

REPEATS = 15
CASES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b on 1 × 8 H100": {"model": {"preset": "llama-3.1-8b"}, "training": {"seq_len": 8192, "global_batch": 64}, "nodes": 1},
    "llama-3.1-70b on 8 × 8 H100": {"model": {"preset": "llama-3.1-70b"}, "training": {"seq_len": 8192}, "nodes": 8},
    "llama-3.1-70b on 64 × 8 H100, global batch": {
        "model": {"preset": "llama-3.1-70b"},
        "training": {"seq_len": 8192, "global_batch": 2048},
        "nodes": 64,
    },
    "llama-3.1-70b on 64 × 8 H100, all axes free": {"model": {"preset": "llama-3.1-70b"}, "training": {"seq_len": 8192}, "nodes": 64},
    "llama-3.1-70b on 5,040 × 8 H100": {"model": {"preset": "llama-3.1-70b"}, "training": {"seq_len": 40320}, "nodes": 5040},
}


def main() -> None:
    """Print a line a case."""
    print(f"{'case':44s} candidates  feasible  median ms  us each  peak MiB")
    for name, case in CASES.items():
        pool = {"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": case["nodes"], "host_memory_gib": 2048}
        request = PlanRequest.model_validate({"model": case["model"], "training": case["training"], "cluster": {"pools": [pool]}})
        question = resolve(request).question
        plan, times = make_plan(question), []
        for _ in range(REPEATS):
            started = time.perf_counter()
            make_plan(question)
            times.append(time.perf_counter() - started)
        tracemalloc.start()
        make_plan(question)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        median = statistics.median(times)
        each = median / plan.candidates * 1e6
        print(f"{name:44s} {plan.candidates:10,d} {plan.feasible:9,d} {median * 1000:10.1f} {each:8.2f} {peak / 2**20:9.1f}")


if __name__ == "__main__":
    main()
