"""Worked examples: requests whose figures explain the terms, evaluated as any other request is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from app.domain.checkpoint.plan import checkpoint_plan
from app.domain.checkpoint.result import CheckpointPlan
from app.domain.plan import Candidate
from app.domain.search.budget import Budget
from app.domain.search.evaluate import Evaluation, with_best_sizes
from app.domain.search.objective import nearest
from app.domain.search.planner import best_of, try_pools
from app.domain.search.results import candidate_at
from app.services.request import PlanRequest
from app.services.resolve import Resolved, resolve

NO_OFFLOAD = {"offload_optimizer": "none", "offload_parameters": "none"}
_NO_AXES = {"tensor_parallel": 1, "pipeline_parallel": 1, "sequence_parallel": 1}
_DISKS = {"nvme_gb": 28000, "nvme_read_gb_per_s": 12, "nvme_write_gb_per_s": 6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A request with the name it goes by.

    Attributes:
        key: short and unique, for anchors.
        title: what is trained and how, in words.
        body: the request.
    """

    key: str
    title: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """An example with everything its recommended candidate costs."""

    example: Example
    resolved: Resolved
    evaluation: Evaluation
    place: int

    @property
    def candidate(self) -> Candidate:
        """The candidate as an answer shows it."""
        return candidate_at(self.evaluation, self.place)

    def checkpoint(self) -> CheckpointPlan:
        """What one of its saves writes."""
        return checkpoint_plan(self.resolved.model.architecture, self.resolved.question.setup.recipe, self.candidate.settings)


def request(
    model: str = "llama-3.1-8b", *, nodes: int = 1, pool: Mapping[str, Any] | None = None, constraints: Mapping[str, Any] | None = None,
    **training: Any,
) -> dict[str, Any]:  # fmt: skip
    """A request on nodes of 8 H100: 4,096 tokens, micro-batch 1 in a batch of 64 sequences, unless said otherwise."""
    return {
        "model": {"preset": model},
        "training": {"seq_len": 4096, "micro_batch": 1, "global_batch": 64} | training,
        "cluster": {"pools": [{"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": nodes} | dict(pool or {})]},
        "constraints": dict(constraints or {}),
    }


def deepspeed(strategy: str, **more: Any) -> dict[str, Any]:
    """Constraints of a DeepSpeed strategy without offload, unless said otherwise."""
    return {"framework": "deepspeed", "strategy": strategy} | NO_OFFLOAD | more


def fsdp2(strategy: str = "fsdp_full", **more: Any) -> dict[str, Any]:
    """Constraints of an FSDP2 strategy without offload, unless said otherwise."""
    return {"framework": "fsdp2", "strategy": strategy} | NO_OFFLOAD | more


@cache
def work(key: str) -> Worked:
    """An example of ``EXAMPLES`` evaluated, once a process."""
    return evaluate(next(example for example in EXAMPLES if example.key == key))


def evaluate(example: Example) -> Worked:
    """Judge a request as the planner does, and keep the lines behind its answer."""
    resolved = resolve(PlanRequest.model_validate(example.body))
    question = resolved.question
    found, chosen = best_of(try_pools(question, Budget()), question.objective)
    evaluation, places = found.show([nearest(found.table) if chosen is None else chosen])
    return Worked(example=example, resolved=resolved, evaluation=evaluation, place=with_best_sizes(evaluation, places[0]))


def _example(key: str, title: str, *given: Any, **more: Any) -> Example:
    return Example(key=key, title=title, body=request(*given, **more))


_CPU = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
_DISK = {"offload_optimizer": "nvme", "offload_parameters": "nvme"}

EXAMPLES: tuple[Example, ...] = (
    _example("zero3", "Llama-3.1-8B on 8 H100 with ZeRO-3", constraints=deepspeed("zero3"), activation_checkpointing="full"),
    _example("fsdp2", "Llama-3.1-8B on 8 H100 with FSDP2", constraints=fsdp2(), activation_checkpointing="full"),
    _example("zero2", "Llama-3.1-8B on 8 H100 with ZeRO-2", constraints=deepspeed("zero2"), activation_checkpointing="full"),
    _example("zero1", "Llama-3.1-8B on 8 H100 with ZeRO-1, gradients added up in fp32", constraints=deepspeed("zero1"),
             activation_checkpointing="full", grad_dtype="fp32"),
    _example("cpu", "Llama-3.1-8B on 8 H100 with ZeRO-3, all states on the host", constraints=deepspeed("zero3") | _CPU,
             activation_checkpointing="full", activation_offload=True, ema=True),
    _example("nvme", "Llama-3.1-8B on 8 H100 with ZeRO-3, all states on NVMe", pool=_DISKS, constraints=deepspeed("zero3") | _DISK,
             activation_checkpointing="full"),
    _example("zero2-cpu", "Llama-3.1-8B on 8 H100 with ZeRO-2, optimizer on the host",
             constraints=deepspeed("zero2", offload_optimizer="cpu"), activation_checkpointing="full"),
    _example("ddp", "Llama-3.1-8B on 8 H100 with DDP", constraints={"framework": "ddp", "strategy": "ddp"},
             activation_checkpointing="full"),
    _example("ema", "Llama-3.1-8B on 8 H100 with ZeRO-3 and averaged weights", constraints=deepspeed("zero3"), ema=True,
             activation_checkpointing="full"),
    _example("pure", "Llama-3.1-8B on 8 H100 with ZeRO-2 in pure bf16", constraints=deepspeed("zero2"), master_weights=False,
             activation_checkpointing="full"),
    _example("hsdp", "Llama-3.1-8B on 2 × 8 H100 with HSDP, a copy a node", nodes=2, constraints=fsdp2("hsdp", shard_group_size=8),
             activation_checkpointing="full"),
    _example("hpz", "Llama-3.1-8B on 2 × 8 H100 with ZeRO-3 and hpZ", nodes=2, constraints=deepspeed("zero3", shard_group_size=8),
             activation_checkpointing="full"),
    _example("lora", "LoRA of Llama-3.1-8B on 8 H100 with FSDP2", constraints=fsdp2(), adapter={"kind": "lora", "rank": 16},
             activation_checkpointing="full"),
    _example("qlora", "QLoRA of Llama-3.1-8B on 8 H100 with ZeRO-2 and a fused loss", constraints=deepspeed("zero2"),
             adapter={"kind": "qlora", "rank": 16}, fused_loss=True, activation_checkpointing="full"),
    _example("fp8", "Llama-3.1-8B on 8 H100 with FSDP2 in fp8", constraints=fsdp2(), precision="fp8", activation_checkpointing="full"),
    _example("eager", "Llama-3.1-8B on 8 H100 with FSDP2 and eager attention", constraints=fsdp2(), attention="eager",
             activation_checkpointing="full"),
    _example("tensor", "Llama-3.1-8B on 8 H100 with FSDP2 over 4 pairs of tensor ranks", constraints=fsdp2(tensor_parallel=2),
             activation_checkpointing="full"),
    _example("pipeline", "Llama-3.1-8B on 8 H100 with ZeRO-1, 2 pipeline stages of 2 tensor ranks",
             constraints=deepspeed("zero1", pipeline_parallel=2, tensor_parallel=2), activation_checkpointing="full"),
    _example("ulysses", "Llama-3.1-8B on 8 H100 with ZeRO-3, each sequence on 2 ranks",
             constraints=deepspeed("zero3", sequence_parallel=2), activation_checkpointing="full"),
    _example("context", "Llama-3.1-8B on 8 H100 with FSDP2, each sequence on 2 ranks", constraints=fsdp2(sequence_parallel=2),
             activation_checkpointing="full"),
    _example("experts", "Mixtral-8x7B on 8 H100 with ZeRO-2, experts over 2 ranks, optimizer on the host", "mixtral-8x7b",
             constraints=deepspeed("zero2", expert_parallel=2, offload_optimizer="cpu"), activation_checkpointing="full"),
    _example("muon", "Llama-3.1-8B on 8 H100 with ZeRO-3 and Muon", constraints=deepspeed("zero3"), optimizer="muon",
             activation_checkpointing="full"),
    _example("zeropp", "Llama-3.1-70B on 4 × 8 H100 over 25 Gbit/s, where ZeRO++ pays", "llama-3.1-70b", nodes=4,
             pool={"inter_node_gbit_per_s": 25}, constraints={"framework": "deepspeed"} | NO_OFFLOAD | _NO_AXES,
             micro_batch=None, global_batch=None),
    _example("tied", "Llama-3.2-1B, whose head is its embedding, on 8 H100 with DDP", "llama-3.2-1b",
             constraints={"framework": "ddp", "strategy": "ddp"}, activation_checkpointing="full"),
    _example("part", "an eighth of Llama-3.1-8B trained, the rest frozen, on 8 H100 with ZeRO-2", constraints=deepspeed("zero2"),
             trainable_params=1_000_000_000, activation_checkpointing="full"),
    Example(
        key="companions",
        title="Llama-3.1-8B on 8 H100 with ZeRO-3, beside its reference, a reward model on the host, a critic and an engine that generates",
        body=request(constraints=deepspeed("zero3"), activation_checkpointing="full") | {"companions": [
            {"role": "reference", "model": {"preset": "llama-3.1-8b"}},
            {"role": "critic", "model": {"preset": "llama-3.2-1b"}, "trains": True},
            {"role": "reward", "model": {"preset": "llama-3.2-1b"}, "offload_parameters": "cpu"},
            {"role": "rollout", "model": {"preset": "llama-3.2-1b"}, "sharding": "replicated", "kv_cache_tokens": 65536},
        ]},
    ),
)  # fmt: skip
"""In the order in which they are tried: a term is shown with the numbers of the first one that has it."""
