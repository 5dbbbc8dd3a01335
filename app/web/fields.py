"""The flat form fields of a PlanRequest: name in the URL, place in the request, label, and what each one changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from app.domain.errors import Loc
from app.services import request as schema

Kind = Literal["text", "int", "tokens", "amount", "frac", "gib", "gb", "rate", "choice", "flag", "json", "names", "triple"]

MAX_POOLS, MAX_COMPANIONS = 8, 8
GROUPS = {
    "model": "Model",
    "model_more": "Size or shape instead",
    "cluster": "GPUs",
    "cluster_more": "Node details",
    "custom": "A GPU that is not listed",
    "batch": "Batch",
    "clip": "Tokens of a video or image instead",
    "numerics": "Numerics",
    "method": "Training method",
    "parallel": "Parallelism",
    "limits": "Goal and limits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """One input.

    Attributes:
        name: key in the query and the form body.
        path: where its value lies in the request document.
        kind: how its text is read.
        group: the part of the form it stands in.
        label, help: its name in words, and what it changes.
        unit: said beside the input.
        choices: accepted values with their words; the first, empty one is what an empty field means.
        default: value an empty field stands for; None where that is the planner's choice.
        required: whether a request needs it, unless another field replaces it.
    """

    name: str
    path: Loc
    kind: Kind
    group: str
    label: str
    help: str = ""
    unit: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    default: Any = None
    required: bool = False


@cache
def all_fields() -> Mapping[str, FormField]:
    """Every field by name, in the order of the form."""
    rows = (*_model(), *_pools(), *_batch(), *_clip(), *_numerics(), *_method(), *_parallel(), *_limits(), *_companions())
    return {row.name: row for row in rows}


def suffix(pool: int) -> str:
    """What the names of a pool's fields end in: nothing for the first, ``2`` for the second."""
    return "" if pool == 0 else str(pool + 1)


def _row(path: Loc, kind: Kind, group: str, label: str, help_: str = "", **more: Any) -> FormField:
    owner, key = _owner(path), str(path[-1])
    found = owner.model_fields.get(key) if owner else None
    values = _literals(found.annotation) if found and kind == "choice" else ()
    default = None if found is None or found.is_required() or found.default_factory else found.default
    empty = more.pop("empty", None) or (_word(str(default)) if default is not None else "planner chooses")
    words = more.pop("words", {})
    choices = (("", empty), *((v, words.get(v) or _word(v)) for v in values if v != default)) if values else more.pop("choices", ())
    return FormField(
        name=more.pop("name", key), path=path, kind=kind, group=group, label=label, help=help_, choices=choices, default=default, **more
    )


def _owner(path: Loc) -> type[BaseModel] | None:
    owners: dict[str, type[BaseModel]] = {
        "": schema.PlanRequest,
        "model": schema.ModelIn,
        "shape": schema.ShapeIn,
        "training": schema.TrainingIn,
        "adapter": schema.AdapterIn,
        "tokens_from": schema.TokensFrom,
        "constraints": schema.ConstraintsIn,
        "gpu": schema.CustomGpu,
        "pools": schema.PoolIn,
        "companions": schema.CompanionIn,
    }
    named = [part for part in path[:-1] if isinstance(part, str)]
    return owners.get(named[-1] if named else "")


def _literals(annotation: Any) -> tuple[str, ...]:
    """Values of a Literal, also inside a union with None."""
    if get_origin(annotation) is Literal:
        return tuple(str(value) for value in get_args(annotation))
    return tuple(value for member in get_args(annotation) for value in _literals(member))


def _word(value: str) -> str:
    named = {
        "True": "yes",
        "False": "no",
        "ddp": "DDP",
        "cpu": "host memory",
        "nvme": "NVMe",
        "none": "none",
        "deepspeed": "DeepSpeed",
        "fsdp2": "FSDP2",
        "zero1": "ZeRO-1",
        "zero2": "ZeRO-2",
        "zero3": "ZeRO-3",
        "fsdp_full": "FSDP full shard",
        "fsdp_grad_op": "FSDP shard grad op",
        "hsdp": "HSDP",
        "adamw": "AdamW",
        "lora": "LoRA",
        "qlora": "QLoRA",
        "sgd": "SGD",
        "muon": "Muon",
        "lion": "Lion",
        "adafactor": "Adafactor",
        "adamw_8bit": "AdamW, 8-bit",
        "paged_adamw_8bit": "AdamW, paged 8-bit",
        "sgd_momentum": "SGD with momentum",
    }
    return named.get(value, value.replace("_", " "))


def _model() -> Iterator[FormField]:
    yield FormField(
        name="model",
        path=("model", "preset"),
        kind="text",
        group="model",
        label="Model",
        required=True,
        help="A catalogue key such as llama-3.1-8b, or organisation/name where this server fetches models.",
    )
    yield _row(
        ("model", "hf_config"),
        "json",
        "config",
        "config.json",
        "Counted tensor by tensor, and used instead of the name above.",
        name="config",
    )
    more = "model_more"
    yield _row(
        ("model", "params"), "amount", more, "Parameters", "Such as 7.5B. The shape is inferred, and said. Used instead of the name above."
    )
    yield _row(("model", "revision"), "text", more, "Revision", "Commit or tag whose config.json is read, with organisation/name.")
    for key, label, note in (
        ("num_layers", "Layers", "A shape is used instead of the name above."),
        ("hidden_size", "Hidden size", "Width of the residual stream, which each layer keeps."),
        ("num_heads", "Heads", "Tensor parallelism has to divide them."),
        ("num_kv_heads", "Key/value heads", "Fewer make keys and values smaller; empty = as many as heads."),
        ("head_dim", "Head dimension", "Width of one head; empty = hidden size / heads."),
        ("ffn_hidden_size", "Feed-forward size", "Most of a block's parameters and activations follow it."),
        ("vocab_size", "Vocabulary", "The logits at the loss grow with it."),
        ("num_experts", "Experts", "Parameters grow with them, the time of a token does not."),
        ("experts_per_token", "Experts per token", "Time and activations of a token grow with them."),
    ):
        yield _row(("model", "shape", key), "int", more, label, note)
    yield _row(("model", "shape", "total_params"), "amount", more, "Total parameters", "Overrides the count of the tensors.")
    yield _row(("model", "shape", "tied_embeddings"), "flag", more, "Tied embeddings", "Input and output embedding are one tensor.")
    yield _row(("model", "shape", "gated_mlp"), "flag", more, "Gated feed-forward", "Three matrices instead of two.")


def _pools() -> Iterator[FormField]:
    for pool in range(MAX_POOLS):
        yield from _pool(("cluster", "pools", pool), suffix(pool))


def _pool(at: Loc, end: str) -> Iterator[FormField]:
    first, detail = ("pool", "pool") if end else ("cluster", "cluster_more")
    yield _row((*at, "gpu"), "text", first, "GPU", "Memory, rates and links come from the catalogue.", name="gpu" + end, required=not end)
    for key, label, note in (
        ("gpus_per_node", "GPUs per node", "They share the fast link; empty = 8."),
        ("nodes", "Nodes", "More ranks divide what is sharded."),
    ):
        yield _row((*at, key), "int", first, label, note, name=key + end)
    yield _row(
        (*at, "instance"),
        "text",
        first,
        "Instance",
        "Such as p5.48xlarge: used instead of the GPU and its count above.",
        name="instance" + end,
    )
    rows: tuple[tuple[str, Kind, str, str, str], ...] = (
        ("host_memory_gib", "gib", "Host memory", "Of one node. Bounds offload and loading.", "GiB"),
        ("gpu_memory_gib", "gib", "GPU memory", "Overrides the memory of one GPU.", "GiB"),
        ("nvme_gb", "gb", "NVMe", "Local disks of one node, for offload.", "GB"),
        ("nvme_read_gb_per_s", "rate", "NVMe read", "Fetching what is offloaded waits for it.", "GB/s"),
        ("nvme_write_gb_per_s", "rate", "NVMe write", "Writing the states back waits for it.", "GB/s"),
        ("intra_node", "text", "Link in the node", "Sets the time of collectives: nvlink2 to nvlink5, pcie3 to pcie6, xgmi.", ""),
        (
            "inter_node_gbit_per_s",
            "rate",
            "Network",
            "All network cards of one node together; collectives between nodes wait for it.",
            "Gbit/s",
        ),
    )
    for key, kind, label, note, unit in rows:
        yield _row((*at, key), kind, detail, label, note, name=key + end, unit=unit)
    own: tuple[tuple[str, Kind, str, str, str], ...] = (
        ("name", "text", "Name", "What the answer calls it; it is used instead of the GPU above.", ""),
        ("memory_gib", "gib", "Memory", "What the driver reports, not the label.", "GiB"),
        ("bf16_tflops", "rate", "Dense bf16", "Without sparsity; compute time follows it.", "TFLOP/s"),
        ("hbm_gb_per_s", "rate", "Memory bandwidth", "The optimizer step and norms follow it.", "GB/s"),
        ("link_gb_per_s", "rate", "Link to peers", "One direction, inside the node.", "GB/s"),
        ("pcie_gb_per_s", "rate", "Link to host", "One direction; offload follows it.", "GB/s"),
    )
    for key, kind, label, note, unit in own:
        yield _row((*at, "gpu", key), kind, "custom" if not end else "pool_custom", label, note, name=f"custom_{key}{end}", unit=unit)


def _batch() -> Iterator[FormField]:
    at: Loc = ("training",)
    yield _row(
        (*at, "seq_len"),
        "tokens",
        "batch",
        "Sequence",
        "Tokens. Longer sequences raise activation memory linearly; 8k is 8,192.",
        required=True,
    )
    yield _row((*at, "global_batch"), "int", "batch", "Global batch", "Sequences per optimizer step; empty lets the planner choose.")
    yield _row((*at, "micro_batch"), "int", "batch", "Micro-batch", "Per GPU and forward; activations grow with it.")
    yield _row((*at, "grad_accum"), "int", "batch", "Accumulation", "Micro-steps per optimizer step; costs no memory.")


def _clip() -> Iterator[FormField]:
    at: Loc = ("training", "tokens_from")
    for key, label, note in (
        ("frames", "Frames", "1 for an image. A clip is used instead of the sequence above."),
        ("height", "Height", "Tokens grow with height times width."),
        ("width", "Width", "Twice both is four times the tokens."),
    ):
        yield _row((*at, key), "int", "clip", label, note, unit="" if key == "frames" else "pixels")
    yield _row((*at, "vae_stride"), "triple", "clip", "Autoencoder stride", "Time, height, width: 4,8,8 keeps a 256th of the pixels.")
    yield _row((*at, "patch"), "triple", "clip", "Patch", "Time, height, width: 1,2,2 makes a token of 4 latents.")


def _numerics() -> Iterator[FormField]:
    at: Loc = ("training",)
    rows: tuple[tuple[str, Kind, str, str], ...] = (
        ("precision", "choice", "Precision", "Dtype of weights and activations in the computation."),
        ("master_weights", "flag", "fp32 master copy", "4 bytes a parameter; no = pure low precision."),
        ("optimizer", "choice", "Optimizer", "AdamW keeps 8 bytes a parameter, 8-bit AdamW 2, SGD none."),
        ("optimizer_state_dtype", "choice", "State dtype", "Of the optimizer's moments: bf16 halves them."),
        ("optimizer_implementation", "choice", "Implementation", "foreach makes temporaries as large as the parameters."),
        ("optimizer_in_backward", "flag", "Step in backward", "Gradients never live all at once."),
        ("grad_dtype", "choice", "Gradient dtype", "Gradients are accumulated and reduced in it."),
        ("ema", "flag", "Averaged weights", "A second copy of the weights."),
    )
    for key, kind, label, note in rows:
        empty = {
            "optimizer_state_dtype": "the optimizer's own",
            "optimizer_implementation": "the emitted file's",
            "grad_dtype": "the framework's own",
        }.get(key)
        yield _row((*at, key), kind, "numerics", label, note, empty=empty)


def _method() -> Iterator[FormField]:
    at: Loc = ("training",)
    yield _row(
        (*at, "activation_checkpointing"), "choice", "method", "Checkpointing", "full keeps one tensor a block and adds a forward pass."
    )
    yield _row((*at, "activation_offload"), "flag", "method", "Keep them on the host", "Checkpoints move to host memory.", choices=_PLANNER)
    yield _row((*at, "attention"), "choice", "method", "Attention", "eager keeps the square score matrix.")
    yield _row((*at, "fused_loss"), "flag", "method", "Fused loss", "The full logits never live.")
    yield _row((*at, "tiled_mlp"), "flag", "method", "Tiled feed-forward", "One slice of the sequence at a time.")
    yield _row((*at, "compile"), "flag", "method", "torch.compile", "Fewer passes over memory.")
    lora: Loc = (*at, "adapter")
    yield _row(
        (*lora, "kind"),
        "choice",
        "method",
        "Adapter",
        "Trains low-rank factors; the base needs no optimizer states.",
        name="adapter_kind",
        empty="none, full training",
    )
    yield _row((*lora, "rank"), "int", "method", "Adapter rank", "The adapter's parameters and states grow with it.", name="adapter_rank")
    yield _row(
        (*lora, "targets"),
        "names",
        "method",
        "Adapter targets",
        "Which layers get factors: all-linear, attention, or names with commas.",
        name="adapter_targets",
    )
    yield _row((*lora, "base_bits"), "int", "method", "Base bits", "Of the frozen weights with QLoRA: 4 or 8.", name="adapter_base_bits")
    yield _row((*lora, "dropout"), "frac", "method", "Adapter dropout", "Above 0 each target keeps its input.", name="adapter_dropout")
    yield _row(
        (*lora, "dtype"),
        "choice",
        "method",
        "Adapter dtype",
        "Of the factors, which are small.",
        name="adapter_dtype",
        empty="the framework's own",
    )
    yield _row(
        (*lora, "modules_to_save"),
        "names",
        "method",
        "Modules trained in full",
        "They need gradients and states: embed_tokens, lm_head.",
        name="adapter_modules",
    )
    yield _row((*at, "trainable_params"), "amount", "method", "Trainable parameters", "For a partly frozen model, such as 1.2B.")


_PLANNER = (("", "planner chooses"), ("true", "yes"), ("false", "no"))


def _parallel() -> Iterator[FormField]:
    at: Loc = ("constraints",)
    rows: tuple[tuple[str, Kind, str, str], ...] = (
        ("framework", "choice", "Framework", "Which library shards; empty compares all three."),
        ("strategy", "choice", "Strategy", "What each rank keeps a share of."),
        ("shard_group_size", "int", "Shard group", "Ranks that share one copy: HSDP, MiCS, hpZ."),
        ("tensor_parallel", "int", "Tensor parallel", "Splits each matrix; wants NVLink."),
        ("pipeline_parallel", "int", "Pipeline parallel", "Splits the layers into stages, which wait for each other."),
        ("sequence_parallel", "int", "Sequence parallel", "Splits each sequence; divides activations."),
        ("expert_parallel", "int", "Expert parallel", "Spreads a mixture's experts; adds all-to-all traffic."),
        ("offload_optimizer", "choice", "Offload optimizer", "Frees GPU memory; the step runs on the host."),
        ("offload_parameters", "choice", "Offload parameters", "DeepSpeed reads this at stage 3 only and ignores it below."),
    )
    for key, kind, label, note in rows:
        yield _row((*at, key), kind, "parallel", label, note)


def _limits() -> Iterator[FormField]:
    yield _row(("objective",), "choice", "limits", "Goal", "What the best plan is best at.")
    yield _row(("headroom_frac",), "frac", "limits", "Left free", "Memory of each GPU that no plan may use: 0.05 or 5 %.")
    yield _row(
        ("deepspeed_version",), "text", "limits", "DeepSpeed release", "Decides the keys of the file: 0.18.9; empty is the newest checked."
    )
    yield _row(("torch_version",), "text", "limits", "PyTorch release", "The same for PyTorch: 2.10; empty is the newest checked.")


def _companions() -> Iterator[FormField]:
    for number in range(MAX_COMPANIONS):
        yield from _companion(("companions", number), f"companion{number + 1}_")


def _companion(at: Loc, start: str) -> Iterator[FormField]:
    rows: tuple[tuple[tuple[str, ...], Kind, str, str], ...] = (
        (("role",), "text", "Role", "reference, critic, reward, teacher, rollout, or a name of your own."),
        (("model", "preset"), "text", "Its model", "A catalogue key such as llama-3.1-8b, or organisation/name where models are fetched."),
        (("model", "params"), "amount", "Its parameters", "Such as 7B, instead of the model; the shape is inferred, and said."),
        (("trains",), "flag", "It trains", "It then has gradients and optimizer states of its own."),
        (("offload_parameters",), "choice", "Its weights", "host memory: they wait there between its forwards."),
        (("kv_cache_tokens",), "int", "Cache tokens", "Of an engine that generates: keys and values kept for so many tokens."),
        (("precision",), "choice", "Its precision", "A frozen model is stored in it."),
        (("sharding",), "choice", "Its sharding", "same divides it where the plan divides parameters."),
        (("head",), "choice", "Its head", "A critic or reward model gives one number a token, and no logits."),
        (("micro_batch",), "int", "Its micro-batch", "Of its forward; empty is the plan's."),
        (("seq_len",), "tokens", "Its sequence", "Of its forward; empty is the plan's."),
        (("model", "revision"), "text", "Its revision", "Commit or tag, with organisation/name."),
        (("model", "hf_config"), "json", "Its config.json", "Counted tensor by tensor, instead of the model."),
        (("model", "shape"), "json", "Its shape", "An object such as the API takes, instead of the model."),
    )  # fmt: skip
    empty = {"offload_parameters": "on the GPU", "precision": "as in training", "sharding": "by what it is", "head": "by its role"}
    for path, kind, label, note in rows:
        key = path[-1].replace("preset", "model").replace("hf_config", "config").replace("offload_parameters", "offload")
        words = {"cpu": "host memory", "lm": "logits", "value": "one number a token"} if kind == "choice" else {}
        yield _row((*at, *path), kind, "companion", label, note, name=start + key, empty=empty.get(path[-1]), words=words)
