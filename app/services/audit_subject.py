"""What an audit knows of model, training and GPUs, from the words of its request."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.audit.subject import ClusterFacts, Degrees, ModelFacts, Subject, TrainingFacts
from app.catalog.gpus import find_gpu
from app.catalog.keys import checked
from app.domain.cluster.cluster import Pool
from app.domain.errors import InvalidRequestError
from app.domain.model import parameters as count
from app.domain.model.architecture import Architecture, Role
from app.domain.recipe.recipe import Recipe
from app.domain.setup import numbers_of
from app.domain.versions import release_of
from app.ingest.config_text import ReadConfig, read_object, read_text
from app.ingest.hub import Hub
from app.services.audit_request import AuditRequest
from app.services.cluster import resolve_pools
from app.services.request import TrainingIn, tokens_of
from app.services.resolve import recipe_of, resolve_model

CHECKED = {"deepspeed": checked("deepspeed"), "torch": checked("torch"), "transformers": "5.24.0", "accelerate": "1.15.0"}
"""Releases the rules were read in, which stand where a request names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A request looked up.

    Attributes:
        subject: what the rules read.
        inferred: what was told from the file itself, in words.
    """

    subject: Subject
    inferred: tuple[str, ...]


def look_up(request: AuditRequest, hub: Hub | None = None) -> Looked:
    """Read the file and look up what it is for.

    Raises:
        InvalidRequestError: the file is no configuration, or something named is unknown.
        UnavailableError: the hub does not answer.
    """
    read = read_text(request.text, request.kind) if request.text is not None else read_object(request.config, request.kind)
    inferred: tuple[str, ...] = () if request.kind else (f"the file is read as {_KINDS[read.kind]}, by its keys",)
    launcher: str | None = request.launcher
    if launcher is None:
        launcher, why = _launcher(read, request)
        inferred += (why,)
    subject = Subject(
        kind=read.kind, config=read.config, launcher=launcher, releases=_releases(request), arguments=request.arguments or {},  # type: ignore[arg-type]
        duplicate_keys=read.duplicates, client_optimizer=request.client_optimizer or "", world_size=request.world_size,
        model=_model(request, hub), training=training_facts(request.training) if request.training else None,
        cluster=_cluster(request), degrees=_degrees(request),
    )  # fmt: skip
    return Looked(subject=subject, inferred=inferred)


_KINDS = {
    "deepspeed": "DeepSpeed's JSON", "accelerate": "accelerate's YAML", "hf_trainer": "TrainingArguments", "fsdp": "an fsdp_config block",
}  # fmt: skip


def _launcher(read: ReadConfig, request: AuditRequest) -> tuple[str, str]:
    """Who starts the job, and why that is taken."""
    if read.kind == "hf_trainer" or request.arguments:
        return "hf_trainer", "the Trainer starts the job, since its arguments are given"
    if read.kind in ("accelerate", "fsdp"):
        return "accelerate", "accelerate launch starts the job"
    if any(value == "auto" for value in _leaves(read.config)):
        return "hf_trainer", 'the file says "auto", which the Hugging Face Trainer fills in; name the launcher if another starts it'
    return "deepspeed", "the script calls deepspeed.initialize itself"


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    else:
        yield value


def _releases(request: AuditRequest) -> dict[str, str]:
    given = {library: version for library, version in request.versions.model_dump().items() if version is not None}
    for library, version in given.items():
        try:
            release_of(version)
        except ValueError as error:
            hint = f"write it as {CHECKED[library]}"
            raise InvalidRequestError.at("versions", library, msg=f"{library} {error}", hint=hint) from None
    return CHECKED | given


def _degrees(request: AuditRequest) -> Degrees:
    pins = request.constraints
    return Degrees(
        tensor_parallel=pins.tensor_parallel or 1, pipeline_parallel=pins.pipeline_parallel or 1,
        sequence_parallel=pins.sequence_parallel or 1, expert_parallel=pins.expert_parallel or 1,
    )  # fmt: skip


def _model(request: AuditRequest, hub: Hub | None) -> ModelFacts | None:
    if request.model is None:
        return None
    recipe = recipe_of(request.training) if request.training else Recipe(seq_len=1)
    return model_facts(resolve_model(request.model, hub).architecture, recipe)


def model_facts(model: Architecture, recipe: Recipe) -> ModelFacts:
    """The model in the numbers that rules use."""
    numbers = numbers_of(model, recipe)
    stacks = sorted(model.stacks, key=lambda stack: stack.part != "main")
    main, adapter = stacks[0].block, recipe.adapter
    moe = next((stack.block.moe for stack in stacks if stack.block.moe), None)
    classes = dict.fromkeys(stack.block.class_name for stack in stacks if stack.block.class_name)
    return ModelFacts(
        name=model.name, family=model.family, total_params=numbers.total, trainable_params=numbers.trainable,
        active_params=count.active_params(model) if count.is_moe(model) else None,
        largest_param_numel=numbers.largest_tensor, largest_trainable_numel=numbers.largest_trained,
        hidden_size=model.hidden_size, num_layers=model.num_layers, vocab_size=model.vocab_size,
        num_heads=main.attention.num_heads if main.attention else 0, num_kv_heads=main.attention.num_kv_heads if main.attention else 0,
        block_classes=tuple(classes), moe_class=moe.class_name if moe else "", is_moe=moe is not None,
        multimodal=model.kind == "multimodal", encoder_decoder=model.kind == "encoder_decoder", hf_class=model.model_class,
        num_experts=_fused_experts(model, numbers.largest_tensor), adapter=adapter.kind if adapter else None,
        base_bits=adapter.base_bits if adapter and adapter.kind == "qlora" else None,
    )  # fmt: skip


def _fused_experts(model: Architecture, largest: int) -> int:
    """Experts of a block whose fused tensor is the model's largest; 0 where there is no such."""
    for stack in model.stacks:
        fused = [w for w in stack.block.weights if w.role is Role.EXPERT and len(w.shape) == 3]
        if stack.block.moe and any(math.prod(w.shape) == largest for w in fused):
            return stack.block.moe.num_experts
    return 0


def training_facts(training: TrainingIn) -> TrainingFacts:
    """The recipe in the request's words."""
    same = ("micro_batch", "grad_accum", "global_batch", "precision", "optimizer", "activation_checkpointing", "compile", "attention")
    seq_len = training.seq_len or (tokens_of(training.tokens_from) if training.tokens_from else 1)
    adapter = training.adapter.kind if training.adapter else None
    named = frozenset(training.model_fields_set)
    return TrainingFacts(seq_len=seq_len, adapter=adapter, named=named, **{name: getattr(training, name) for name in same})


def _cluster(request: AuditRequest) -> ClusterFacts | None:
    if request.cluster is None:
        return None
    return cluster_facts(resolve_pools(request.cluster.pools).pools)


def cluster_facts(pools: tuple[Pool, ...]) -> ClusterFacts:
    """The GPUs as a job over all pools has them: the smallest, and as many as there are."""
    least = min(pools, key=lambda pool: pool.node.gpu.memory_bytes)
    node, gpu = least.node, least.node.gpu
    spec = find_gpu(gpu.key) if gpu.key != "custom" else None
    nodes = sum(pool.nodes for pool in pools)
    hosts = [pool.node.host_memory_bytes for pool in pools]
    known = [host for host in hosts if host is not None]
    return ClusterFacts(
        gpu_name=gpu.name, gpu_architecture="" if spec is None else gpu.architecture, vendor=spec.vendor if spec else "",
        supports=frozenset(gpu.peak_flops_per_s) | (spec.supports if spec else frozenset()), gpu_bytes=gpu.memory_bytes,
        gpus_per_node=min(pool.node.gpus_per_node for pool in pools), nodes=nodes,
        host_bytes=min(known) if len(known) == len(hosts) else None,
        inter_node_bytes_per_s=min(pool.node.inter_node.bytes_per_s for pool in pools) if nodes > 1 else None,
        nvlink=not node.intra_node.name.startswith("pcie"),
    )  # fmt: skip
