"""What an audit looks at: the configuration as read, who launches it, and what is known of model, training and GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Kind = Literal["deepspeed", "accelerate", "hf_trainer", "fsdp"]
Launcher = Literal["deepspeed", "hf_trainer", "accelerate"]

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The model in numbers.

    Attributes:
        name, family: what it is called, and the family whose rules counted it.
        total_params, trainable_params, frozen_params: parameters, tied ones once.
        active_params: those one token uses; None for a dense model.
        largest_param_numel: elements of the largest single parameter.
        largest_trainable_numel: elements of the largest single trained parameter.
        hidden_size, num_layers, vocab_size: of the main stack; num_heads, num_kv_heads are 0 without attention.
        block_classes: classes of the repeated blocks, which wrap policies name, the main stack's first.
        moe_class: class of the block that holds the experts; empty for a dense model or an unknown class.
        is_moe, multimodal, encoder_decoder: what kind of model it is.
        hf_class: the class transformers builds.
        adapter: ``lora``, ``qlora`` or None.
        base_bits: bits of the frozen weights under QLoRA.
        num_experts: experts of one block, which transformers keeps in one fused tensor; 0 for a dense model or where unknown.
    """

    name: str
    family: str
    total_params: int
    trainable_params: int
    active_params: int | None
    largest_param_numel: int
    largest_trainable_numel: int
    hidden_size: int
    num_layers: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    block_classes: tuple[str, ...]
    moe_class: str
    is_moe: bool
    multimodal: bool
    encoder_decoder: bool
    hf_class: str
    adapter: str | None = None
    base_bits: int | None = None
    num_experts: int = 0

    @property
    def frozen_params(self) -> int:
        """Parameters without gradients."""
        return self.total_params - self.trainable_params


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """The recipe as the request has it; None where it says nothing.

    Attributes:
        adapter: ``lora``, ``qlora`` or None.
        named: fields that the request names itself; the others are its defaults, which no file contradicts.
    """

    seq_len: int
    micro_batch: int | None
    grad_accum: int | None
    global_batch: int | None
    precision: str
    optimizer: str
    activation_checkpointing: str | None
    compile: bool
    attention: str
    adapter: str | None = None
    named: frozenset[str] = frozenset({"precision", "optimizer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The GPUs of the job.

    Attributes:
        gpu_name, gpu_architecture: of the smallest GPU; the architecture is ``volta``, ``ampere`` and so on, empty where unknown.
        vendor: ``nvidia``, ``amd``, ``intel`` or empty.
        supports: dtypes with native matrix units, of ``fp16``, ``bf16``, ``fp8``.
        gpu_bytes: what a framework can use of one GPU.
        gpus_per_node, nodes: the smallest node's, and how many there are.
        host_bytes: memory of one node.
        inter_node_bytes_per_s: of one node; None on a single node.
        nvlink: whether GPUs of a node are joined by more than PCIe.
    """

    gpu_name: str
    gpu_architecture: str
    vendor: str
    supports: frozenset[str]
    gpu_bytes: int
    gpus_per_node: int
    nodes: int
    host_bytes: int | None
    inter_node_bytes_per_s: float | None
    nvlink: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """How the job is split besides data parallelism, where the request pins it."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    sequence_parallel: int = 1
    expert_parallel: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Everything a rule may look at.

    Attributes:
        kind: what the file is: DeepSpeed's JSON, accelerate's YAML, the Trainer's arguments, or a bare ``fsdp_config`` block.
        config: the file as read. Of ``accelerate`` the whole YAML; of ``fsdp`` the keys of the block; of ``hf_trainer`` the arguments.
        launcher: who starts the job, which decides what ``auto`` means.
        releases: of each library, the newest that was checked where the request names none.
        arguments: TrainingArguments that come beside a DeepSpeed file.
        duplicate_keys: keys that the text has twice in one block.
        client_optimizer: optimizer that the script hands over, as named; empty for none.
        world_size: ranks of the job where known without a cluster.
    """

    kind: Kind
    config: Mapping[str, Any]
    launcher: Launcher
    releases: Mapping[str, str]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    duplicate_keys: tuple[str, ...] = ()
    client_optimizer: str = ""
    world_size: int | None = None
    model: ModelFacts | None = None
    training: TrainingFacts | None = None
    cluster: ClusterFacts | None = None
    degrees: Degrees = field(default_factory=Degrees)

    def release(self, library: str) -> str:
        """The release of a library, e.g. ``0.19.8``."""
        return self.releases[library]

    @property
    def adapter(self) -> str | None:
        """``lora`` or ``qlora``, as model or training have it."""
        return (self.model.adapter if self.model else None) or (self.training.adapter if self.training else None)

    @property
    def ranks(self) -> int | None:
        """Ranks of the job; None where nothing says how many."""
        if self.world_size is not None:
            return self.world_size
        return self.cluster.gpus_per_node * self.cluster.nodes if self.cluster else None

    @property
    def deepspeed(self) -> Mapping[str, Any]:
        """DeepSpeed's configuration, empty where the file is of another kind."""
        return self.config if self.kind == "deepspeed" else NOTHING
