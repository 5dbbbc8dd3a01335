"""The arithmetic behind corrected claims, computed by the engine: a function a claim, by the claim's key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from app.catalog.gpus import find_gpu
from app.domain.memory.buffers import bucket_bytes, step_buffer_bytes
from app.domain.memory.logits import logits_bytes
from app.domain.memory.moments import BACKWARD
from app.domain.model.parameters import active_params
from app.domain.traffic.ideal import ideal_states_bytes, ideal_traffic_bytes
from app.domain.traffic.volumes import all_reduce_sent_bytes, reduce_scatter_sent_bytes
from app.services.method.examples import Example, Worked, deepspeed, evaluate, fsdp2, request, work
from app.services.method.lives import life

DEFAULT_BUCKET = 500_000_000
DEFAULT_SUB_GROUP = 1_000_000_000
BF16_BYTES, FP32_BYTES = 2, 4
_STATES = ("parameters", "gradients", "optimizer_states")


class Fact(NamedTuple):
    """One computed figure: what it is of, how it comes about (empty for an evaluated plan), its value and unit."""

    what: str
    arithmetic: str
    value: float
    unit: str = "bytes"


Evidence = Callable[[], list[Fact]]


def evidence_of(claim: str) -> tuple[Fact, ...]:
    """The figures that belong to a claim; none where it is about behaviour that has no size."""
    return _computed(claim) if claim in EVIDENCE else ()


@cache
def _computed(claim: str) -> tuple[Fact, ...]:
    return tuple(EVIDENCE[claim]())


def held(worked: Worked, *functions: str, ledger: str = "gpu") -> float:
    """Sum of the lines of some term functions, whole, in one of the memory ledgers."""
    lines = getattr(worked.evaluation.memory, ledger).lines
    return float(sum(line.value.item(worked.place) for line in lines if line.card.key.rsplit(".", 1)[1] in functions))


def _variant(constraints: Mapping[str, Any], *, nodes: int = 1, **training: Any) -> Worked:
    body = request(nodes=nodes, constraints=constraints, activation_checkpointing="full", **training)
    return evaluate(Example(key="", title="", body=body))


def _value(function: Callable[..., Any], *given: float) -> float:
    """A term function of plain numbers."""
    return float(function(*given))


def _sixteen_bytes() -> list[Fact]:
    worked = work("zero3")
    params, gpu = worked.evaluation.numbers.trainable, worked.candidate.gpu
    states = sum(t.value for t in gpu.terms if t.category in _STATES)
    ranks = worked.candidate.settings.shard_group_size
    ideal = ideal_states_bytes(params, ranks)
    return [
        Fact("Adam's states of Llama-3.1-8B on one GPU", f"16 × {params:,}", ideal["ddp"]),
        Fact("the same under ZeRO-3 over 8 GPUs", f"16 × {params:,} / {ranks}", ideal["zero3"]),
        Fact("one GPU's memory at the peak of that plan, 4,096 tokens", "", gpu.device_bytes),
        Fact("of which parameters, gradients and states", "", states),
    ]


def _one_nth() -> list[Fact]:
    found = life("zero3")
    resting = sum(d.bytes_each / d.ranks for d in found.divided) * found.worked.evaluation.numbers.trainable
    each = " + ".join(f"{d.bytes_each:g} / {d.ranks}" for d in found.divided)
    peak = max(found.moments, key=lambda m: m.total)
    whole = held(found.worked, "stage3_gather_bytes", "unsharded_gradient_bytes", "bucket_bytes")
    return [
        Fact(
            "TinyLlama-1.1B under ZeRO-3 over 8 GPUs, between steps", f"({each}) × {found.worked.evaluation.numbers.trainable:,}", resting
        ),
        Fact("whole parameters, whole gradients and buckets on top", "", whole),
        Fact(f"allocated at the peak, {peak.label}", "", peak.total),
    ]


def _peak_is_a_sum() -> list[Fact]:
    worked = work("zero2")
    lines = worked.evaluation.memory.gpu.lines
    total = sum(line.value.item(worked.place) for line in lines)
    gpu = worked.candidate.gpu
    return [
        Fact("every term of Llama-3.1-8B under ZeRO-2 added up", "", float(total)),
        Fact(f"the largest moment, {gpu.peak_moment}", "", gpu.peak_allocated_bytes),
    ]


def _logits() -> list[Fact]:
    vocab, tokens = work("zero3").evaluation.setup.model.vocab_size, 8192
    fused = _variant(fsdp2(), seq_len=tokens, fused_loss=True)
    return [
        Fact("logits of 8,192 tokens of Llama-3.1-8B", f"12 × {tokens:,} × {vocab:,}", _value(logits_bytes, tokens, vocab, 12, 1)),
        Fact("the same with a fused loss", "", held(fused, "fused_loss_bytes")),
    ]


def _eighty_gb() -> list[Fact]:
    gpu = find_gpu("h100-sxm-80gb")
    return [
        Fact("80 GiB", "80 × 2³⁰", 80.0 * 2**30),
        Fact("80 GB", "80 × 10⁹", 80e9),
        Fact("what torch reports of an H100 80 GB", "", float(gpu.memory_bytes)),
    ]


def _gradients() -> list[Fact]:
    rows = [(f"ZeRO-2, {d.name}", d) for d in life("zero2").divided] + [(f"FSDP2, {d.name}", d) for d in life("fsdp_full").divided]
    return [Fact(f"{name}, bytes of one element", "", d.bytes_each, "number") for name, d in rows if d.name == "gradients"]


def _experts() -> list[Fact]:
    worked = work("experts")
    n, model = worked.evaluation.numbers, worked.evaluation.setup.model
    return [
        Fact("Mixtral-8x7B, all parameters", "", float(n.total), "number"),
        Fact("used by one token", "", float(active_params(model)), "number"),
        Fact("Adam's states of all of them", f"16 × {n.total:,}", 16.0 * n.total),
        Fact("what the active ones would take", f"16 × {active_params(model):,}", 16.0 * active_params(model)),
    ]


def _lora() -> list[Fact]:
    adapter = {"kind": "lora", "rank": 16}
    plans = [(label, _variant(deepspeed(name), adapter=adapter)) for name, label in (("zero2", "ZeRO-2"), ("zero3", "ZeRO-3"))]
    return [Fact(f"frozen weights of Llama-3.1-8B on each of 8 GPUs, {label}", "", held(w, "frozen_bytes")) for label, w in plans]


def _estimator() -> list[Fact]:
    worked = work("zero3")
    n, ranks = worked.evaluation.numbers, worked.candidate.settings.shard_group_size
    largest = worked.evaluation.setup.model.hidden_size * worked.evaluation.setup.model.vocab_size
    return [
        Fact("DeepSpeed's estimate for Llama-3.1-8B over 8 GPUs", f"18 × {n.total:,} / {ranks} + 4 × {largest:,}",
             18 * n.total / ranks + 4 * largest),
        Fact("one GPU's memory at the peak, 4,096 tokens", "", worked.candidate.gpu.device_bytes),
    ]  # fmt: skip


def _bucket() -> list[Fact]:
    one = _value(bucket_bytes, DEFAULT_BUCKET, BF16_BYTES, 1)
    three = _value(bucket_bytes, DEFAULT_BUCKET, BF16_BYTES, 3)
    return [
        Fact("one bucket of the default size in bf16", f"{DEFAULT_BUCKET:,} × 2", one),
        Fact("two buckets and the flat copy, with overlap_comm at stage 2", f"{DEFAULT_BUCKET:,} × 2 × 3", three),
    ]


def _overlap() -> list[Fact]:
    three = _value(bucket_bytes, DEFAULT_BUCKET, BF16_BYTES, 3)
    return [
        Fact("as claimed, both buckets at their default", f"4.5 × (2 × {DEFAULT_BUCKET:,}) × 2", 4.5 * 2 * DEFAULT_BUCKET * 2),
        Fact("what stage 2 allocates", f"{DEFAULT_BUCKET:,} × 2 × 3", three),
    ]


def _sub_group() -> list[Fact]:
    sizes = (DEFAULT_SUB_GROUP, DEFAULT_SUB_GROUP // 10)
    return [
        Fact(f"gradients of one step of {n:,} elements, cast to fp32", f"{n:,} × 4", _value(step_buffer_bytes, n, FP32_BYTES))
        for n in sizes
    ]


def _twice() -> list[Fact]:
    params = work("zero2").evaluation.numbers.trainable
    ideal = ideal_traffic_bytes(params, 8)
    out = [Fact("paper: DDP, ZeRO-1 and ZeRO-2, one step of Llama-3.1-8B over 8 GPUs", f"2 × 7/8 × 2 × {params:,}", ideal["ddp"])]
    for accumulated in (1, 8):
        for name, label in (("zero1", "ZeRO-1"), ("zero2", "ZeRO-2")):
            worked = _variant(deepspeed(name), grad_accum=accumulated, global_batch=None)
            sent = sum(t.bytes_per_step for t in worked.candidate.communication)
            out.append(Fact(f"DeepSpeed: {label}, {accumulated} micro-step{'s' * (accumulated > 1)}", "", sent))
    return out


def _scatter() -> list[Fact]:
    params = work("zero2").evaluation.numbers.trainable
    given = (params, BF16_BYTES, 8, 1)
    return [
        Fact("all-reduce of Llama-3.1-8B's gradients over 8 GPUs", f"2 × 7/8 × 2 × {params:,}", _value(all_reduce_sent_bytes, *given)),
        Fact("a reduce-scatter of them", f"7/8 × 2 × {params:,}", _value(reduce_scatter_sent_bytes, *given)),
    ]


def _volume() -> list[Fact]:
    ideal = ideal_traffic_bytes(work("zero2").evaluation.numbers.trainable, 8)
    times = {name: work(name).candidate.time.step_s for name in ("zero2", "zero3")}
    return [
        Fact("bytes of ZeRO-3 over bytes of DDP", f"{ideal['zero3']:,} / {ideal['ddp']:,}", ideal["zero3"] / ideal["ddp"], "number"),
        Fact("predicted step of Llama-3.1-8B on 8 H100, ZeRO-2", "", times["zero2"], "seconds"),
        Fact("ZeRO-3", "", times["zero3"], "seconds"),
    ]


def _reshard() -> list[Fact]:
    found = [(label, life(slug)) for label, slug in (("with resharding", "fsdp_full"), ("without", "fsdp_grad_op"))]
    sent = "parameter all-gather"
    return [
        Fact(f"parameters gathered in a step of TinyLlama-1.1B, {label}", "",
             sum(t.bytes_per_step for t in one.candidate.communication if t.name == sent))
        for label, one in found
    ] + [Fact(f"allocated at the peak, {label}", "", max(m.total for m in one.moments)) for label, one in found]  # fmt: skip


def _offload_parameters() -> list[Fact]:
    plain, asked = (
        _variant(deepspeed("zero2", offload_optimizer="cpu")),
        _variant(deepspeed("zero2", offload_optimizer="cpu", offload_parameters="cpu")),
    )
    return [
        Fact("parameters of Llama-3.1-8B on each GPU, ZeRO-2", "", held(plain, "parameter_bytes")),
        Fact("the same with offload_param", "", held(asked, "parameter_bytes")),
        Fact("parameters on the host", "", held(asked, "host_parameter_bytes", ledger="host")),
    ]


def _disk() -> list[Fact]:
    worked = _variant(deepspeed("zero2", offload_optimizer="nvme"))
    return [
        Fact("optimizer states of Llama-3.1-8B on disk, ZeRO-2 with NVMe", "", held(worked, "nvme_state_bytes", ledger="nvme")),
        Fact("optimizer states in host memory", "", held(worked, "host_state_bytes", ledger="host")),
    ]


def _host() -> list[Fact]:
    worked = _variant(deepspeed("zero2", offload_optimizer="cpu"))
    params, host = worked.evaluation.numbers.trainable, worked.candidate.host
    return [
        Fact("as claimed, Llama-3.1-8B", f"12 × {params:,}", 12.0 * params),
        Fact("host memory of a node of 8 GPUs, ZeRO-2", "", host.peak_bytes),
        Fact("bytes a parameter", f"{host.peak_bytes:,} / {params:,}", host.peak_bytes / params, "number"),
    ]


def _host_nodes() -> list[Fact]:
    out = []
    for nodes in (1, 2, 4):
        worked = _variant(deepspeed("zero2", offload_optimizer="cpu"), nodes=nodes)
        of = f"of each of {nodes} node{'s' * (nodes > 1)} of 8 GPUs"
        out.append(Fact(f"optimizer states {of}, Llama-3.1-8B", "", held(worked, "host_state_bytes", ledger="host")))
        out.append(Fact(f"the model while it is loaded, {of}", "", held(worked, "load_bytes", ledger="host")))
    return out


def _ratio() -> list[Fact]:
    shard = work("zero3").evaluation.numbers.trainable / work("zero3").candidate.settings.shard_group_size
    rows = []
    for size in (DEFAULT_SUB_GROUP, DEFAULT_SUB_GROUP // 10):
        groups = -(-int(shard) // size)
        given = f"{shard:,.0f} elements a rank in sub-groups of {size:,}: int((1 − 0.8) × {groups})"
        rows.append(Fact("sub-groups that a ratio of 0.8 leaves on the GPU", given, float(int((1 - 0.8) * groups)), "number"))
    return rows


def _grad_op() -> list[Fact]:
    out = []
    for label, slug in (("ZeRO-2", "zero2"), ("FSDP2 without resharding", "fsdp_grad_op")):
        found = life(slug)
        out.append(Fact(f"parameters of TinyLlama-1.1B between steps, {label}", "", held(found.worked, "parameter_bytes")))
        whole = next(m for m in found.moments if m.key == BACKWARD)
        out.append(Fact(f"allocated at the {whole.label}, {label}", "", whole.total))
    return out


def _hybrid() -> list[Fact]:
    out = []
    for key, label in (("hsdp", "HSDP, groups of 8 of 16 GPUs"), ("hpz", "ZeRO-3 over 16 GPUs with hpZ over 8")):
        worked = work(key)
        out.append(Fact(f"weights kept for the optimizer and its states, {label}", "",
                        held(worked, "master_bytes", "optimizer_bytes") + held(worked, "parameter_bytes") * (key == "hsdp")))  # fmt: skip
        out.append(Fact(f"second copy of the parameters, {label}", "", held(worked, "parameter_copy_bytes")))
    return out


EVIDENCE: Mapping[str, Evidence] = {
    "sixteen-bytes": _sixteen_bytes,
    "one-nth": _one_nth,
    "peak-is-a-sum": _peak_is_a_sum,
    "logits-are-small": _logits,
    "eighty-gb": _eighty_gb,
    "gradients-in-fp32": _gradients,
    "experts-by-active": _experts,
    "lora-zero2": _lora,
    "estimator": _estimator,
    "bucket-is-bytes": _bucket,
    "overlap-four-and-a-half": _overlap,
    "sub-group-gpus": _sub_group,
    "zero12-twice": _twice,
    "reduce-scatter-key": _scatter,
    "one-and-a-half": _volume,
    "no-reshard-no-gather": _reshard,
    "offload-param-anywhere": _offload_parameters,
    "nvme-at-stage-2": _disk,
    "host-twelve": _host,
    "host-and-nodes": _host_nodes,
    "ratio-alone": _ratio,
    "grad-op-is-zero2": _grad_op,
    "hsdp-is-hpz": _hybrid,
}
