"""What would make a diagnosis surer, and the command that gives it."""

from __future__ import annotations

from collections.abc import Iterator

from app.ingest.logs import LogFacts
from app.services.diagnose.asked import PartialRequest

_GIVE = {
    "model": "request.model: the catalogue key or config.json, without which no tensor's size follows.",
    "cluster": "request.cluster: the GPUs, how many in a node and how many nodes (nvidia-smi -L; the launcher's line).",
    "strategy": "request.constraints.strategy: which ZeRO stage, FSDP or DDP ran (zero_optimization.stage of ds_config.json).",
    "micro_batch": "request.training.micro_batch: sequences per GPU and forward (per_device_train_batch_size).",
    "seq_len": "request.training.seq_len: tokens of the longest sequence (cutoff_len, max_seq_length; print(input_ids.shape)).",
    "activation_checkpointing": "request.training.activation_checkpointing: full where gradient_checkpointing was on, else none.",
}  # fmt: skip
NO_LOG = (
    "The end of the log, from the first Traceback on: python train.py 2>&1 | tee run.log; tail -n 100 run.log",
    "For a GPU: print(torch.cuda.memory_summary()) after the error, or deepspeed.runtime.utils.see_memory_usage('', force=True).",
    "For a process that just ends: its exit code, and on the node dmesg -T | grep -iE 'killed process|oom' (kubectl describe pod).",
    "For slowness: the seconds of a step (wall_clock_breakdown true in ds_config.json, or the bar of the trainer).",
)


def about_request(asked: PartialRequest, knows: frozenset[str], wanted: tuple[str, ...]) -> list[str]:
    """Fields of the request that sizes depend on and nobody gave."""
    given = knows | ({"strategy"} if asked.constraints.framework == "ddp" else set())
    return [_GIVE[name] for name in wanted if name not in given]


def about_gpu(facts: LogFacts) -> Iterator[str]:
    """What an out-of-memory log could have said and did not."""
    gpu = facts.gpu
    if gpu.requested is None and gpu.peak is None:
        yield "The line with “Tried to allocate”: its size names the tensor. grep -n 'Tried to allocate' run.log"
    if facts.phase is None and gpu.requested is not None:
        yield "The stack above the message, which says in which phase it came: grep -n -B 40 'Tried to allocate' run.log"
    if gpu.requested is not None and gpu.allocated is None:
        yield "How much was allocated and reserved: the rest of the message, or print(torch.cuda.memory_summary())."


def about_host(facts: LogFacts, *, capacity_known: bool) -> Iterator[str]:
    """What the log of a kill could have said and did not."""
    if facts.phase is None:
        yield "What the process did last: the lines before it was killed (loading shards, building the engine, a step, saving)."
    if not capacity_known:
        yield "request.cluster.pools[0].host_memory_gib: memory of the node or container (free -g; cat /sys/fs/cgroup/memory.max)."
    if facts.host.process is None:
        yield "Which process was how large: dmesg -T | grep -i 'killed process' (anon-rss), or ps -o pid,rss,cmd --sort=-rss while it runs."


def about_speed(knows: frozenset[str], *, nodes: int, network_known: bool) -> Iterator[str]:
    """What the time of a step follows from and nobody gave."""
    if nodes > 1 and not network_known:
        yield "request.cluster.pools[0].inter_node_gbit_per_s: all network cards of a node together (ibstat; ethtool eth0 | grep Speed)."
    if "micro_batch" not in knows:
        yield _GIVE["micro_batch"]
