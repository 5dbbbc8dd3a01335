"""The snippet of ``shardplan probe`` in a training loop on a CPU: what it prints is what the service takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.emit.probe import FILENAME, probe_snippet
from app.main import create_app
from app.services.measured import MeasurementIn
from app.settings import AppSettings
from app.web.schemas import EXAMPLE_REQUEST
from tests.verify.harness import run_ranks

LOOP = """
import sys
import torch
from shardplan_probe import Probe

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


if sys.argv[1] == "loop":
    with Probe(tokens_per_step=None) as probe:
        probe.watch(model, optimizer)
        for _ in range(8):
            step()
            probe.step()
else:  # as the Trainer calls its callbacks: each event of each, with keyword arguments
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import CallbackHandler

    handler = CallbackHandler([Probe()], model, None, optimizer, None)
    args, state, control = TrainingArguments(output_dir="out", use_cpu=True), TrainerState(), TrainerControl()
    handler.on_train_begin(args, state, control)
    handler.on_epoch_begin(args, state, control)
    for _ in range(8):
        handler.on_step_begin(args, state, control)
        step()
        handler.on_step_end(args, state, control)
    handler.on_epoch_end(args, state, control)
    handler.on_train_end(args, state, control)
"""


@pytest.mark.files("shardplan_probe.py", "torch", "transformers")
@pytest.mark.parametrize("way", ["loop", "trainer"])
def test_a_run_is_measured_and_kept(tmp_path: Path, way: str) -> None:
    """In a loop of one's own and as a callback of the Trainer; the JSON goes to the service unchanged."""
    (tmp_path / FILENAME).write_text(probe_snippet("abc", "http://127.0.0.1:8000").text, encoding="utf-8")
    (tmp_path / "loop.py").write_text(LOOP, encoding="utf-8")
    printed = run_ranks(tmp_path / "loop.py", tmp_path, ranks=1, arguments=[way])
    line = next(line for line in printed.splitlines() if line.startswith("{"))
    assert (tmp_path / "shardplan-run.json").read_text(encoding="utf-8") == line + "\n"
    report = json.loads(line)
    assert (report["peak_bytes"], report["counter"], report["oom"]) == (None, None, False)  # there is no GPU to ask
    assert 0 < report["step_s"] < 1
    assert set(report["versions"]) >= {"torch"}
    with TestClient(create_app(AppSettings(database_url=f"sqlite:///{tmp_path / 'service.db'}", log_format="text"))) as client:
        plan = client.post("/plans", json=EXAMPLE_REQUEST).json()["id"]
        kept = client.post(f"/plans/{plan}/measurements", content=line, headers={"content-type": "application/json"})
        assert (kept.status_code, kept.json()["step_s"]) == (201, report["step_s"])


PRETENDED = """
import sys
import torch
from shardplan_probe import Probe

peaks, since = iter(range(60, 90)), [60]


def reset():
    since[0] = next(peaks)


torch.cuda.is_available = lambda: True
torch.cuda.synchronize = lambda: None
torch.cuda.reset_peak_memory_stats = reset
torch.cuda.max_memory_allocated = lambda: since[0] * 2**30
torch.cuda.max_memory_reserved = lambda: (since[0] + 2) * 2**30
torch.cuda.mem_get_info = lambda: (10 * 2**30, 80 * 2**30)

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    with Probe() as probe:
        probe.watch(model, optimizer)
        for number in range(5):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            probe.step()
            if number == 3 and sys.argv[1] == "full":
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
except torch.cuda.OutOfMemoryError:
    pass
"""


@pytest.mark.parametrize("way", ["whole", "full"])
def test_counters_of_a_gpu_are_reported(tmp_path: Path, way: str) -> None:
    """Of a pretended one: peaks between resets are kept, moments named, and running out of memory is a report too."""
    (tmp_path / FILENAME).write_text(probe_snippet().text, encoding="utf-8")
    (tmp_path / "pretended.py").write_text(PRETENDED, encoding="utf-8")
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    report = json.loads(run_ranks(tmp_path / "pretended.py", tmp_path, ranks=1, arguments=[way], env=env).strip().splitlines()[-1])
    last = 60 + 3 * (5 if way == "whole" else 4)  # resets: at the start, then three a step
    assert (report["peak_bytes"], report["counter"]) == ((last + 2) * 2**30, "reserved")
    assert report["other_peaks"] == {"allocated": last * 2**30, "device": 70 * 2**30}
    assert list(report["moments"]) == ["before", "forward", "backward", "step"]
    assert report["moments"]["step"] < report["peak_bytes"]
    assert (report["oom"], report["step_s"] is None) == (way == "full", way == "full")
    assert report["expandable_segments"] is True
    MeasurementIn.model_validate(report)


def test_ranks_report_the_fullest_gpu_and_the_slowest_step(tmp_path: Path) -> None:
    """One line of two ranks, from rank 0."""
    (tmp_path / FILENAME).write_text(probe_snippet().text, encoding="utf-8")
    script = (
        "import os\nimport torch.distributed as dist\nfrom shardplan_probe import Probe\ndist.init_process_group('gloo')\n"
        "rank = dist.get_rank()\nprobe = Probe(tokens_per_step=100)\nprobe.peaks = {'reserved': 10 + rank, 'device': 20 - rank}\n"
        "probe.moments = {'forward': rank}\nprobe.seconds = [9.0, 9.0, 9.0, 1.0 + rank]\nprobe.report()\ndist.destroy_process_group()\n"
    )
    (tmp_path / "ranks.py").write_text(script, encoding="utf-8")
    report = json.loads(run_ranks(tmp_path / "ranks.py", tmp_path, ranks=2).strip().splitlines()[-1])
    assert (report["peak_bytes"], report["other_peaks"], report["moments"]) == (11, {"device": 20}, {"forward": 1})
    assert (report["step_s"], report["tokens_per_s"]) == (2.0, 50.0)
    assert not (tmp_path / "rank-1.out").read_text(encoding="utf-8").strip()
