"""Where an emitted script gets its model from: the user's config.json, or one of a family with the plan's shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from app.domain.errors import ConflictError
from app.domain.model.architecture import Architecture
from app.emit.job import EmitJob
from app.emit.tiny import tiny_overrides

LINE_CHARS = 110
DROPPED = ("_name_or_path", "auto_map", "dtype", "id2label", "label2id", "quantization_config", "task_specific_params")
DROPPED_ALSO = ("torch_dtype", "transformers_version", "use_cache")
"""Keys that say where the file came from, or what the script decides itself."""

AUTO_CLASSES = {
    "decoder": "AutoModelForCausalLM",
    "ssm": "AutoModelForCausalLM",
    "encoder": "AutoModelForMaskedLM",
    "encoder_decoder": "AutoModelForSeq2SeqLM",
    "multimodal": "AutoModelForImageTextToText",
}


SHAPED_BLOCKS = {"llama": "LlamaDecoderLayer", "mixtral": "MixtralDecoderLayer", "nemotron": "NemotronDecoderLayer"}
SHAPED_MOE = "MixtralSparseMoeBlock"


def auto_class(job: EmitJob) -> str:
    """The transformers class that builds the model for training.

    Raises:
        ConflictError: a model without a vocabulary, whose training loop depends on its data.
    """
    model = job.model
    if model.kind not in AUTO_CLASSES or not model.vocab_size:
        raise ConflictError(
            f"no training script is written for {model.kind} models without a vocabulary: their inputs differ too much; "
            "use the configuration files with your own script"
        )
    return AUTO_CLASSES[model.kind]


def config_of(job: EmitJob) -> Mapping[str, Any] | None:
    """The config.json to embed: the user's, else one made from the shape; None where only a repository is known."""
    if job.hf_config and "model_type" in job.hf_config:
        dropped = {*DROPPED, *DROPPED_ALSO}
        return {key: value for key, value in job.hf_config.items() if key not in dropped}
    return None if job.hf_id else shaped_config(job.model)


def shaped_config(model: Architecture) -> dict[str, Any]:
    """A decoder of a well-known family with this shape: Llama, Mixtral with experts, Nemotron without gates.

    Raises:
        ConflictError: the main block has no attention to describe.
    """
    block = model.main_block
    attention, mlp, moe = block.attention, block.mlp, block.moe
    if attention is None or (mlp is None and moe is None):
        raise ConflictError(f"no config.json is known for {model.family}, and its shape is not that of a transformer")
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_seq_len or 131072,
        "tie_word_embeddings": model.tied_embeddings,
    }
    if moe is not None:
        config |= {"model_type": "mixtral", "intermediate_size": moe.expert_ffn_hidden_size}
        config |= {"num_local_experts": moe.num_experts, "num_experts_per_tok": moe.experts_per_token}
    elif mlp is not None:
        config |= {"model_type": "llama" if mlp.gated else "nemotron", "intermediate_size": mlp.ffn_hidden_size}
    return config


def shaped_tiny(model: Architecture) -> dict[str, Any]:
    """A complete config.json of a tiny model of this shape, for where only a repository's name is known."""
    config = shaped_config(model)
    return {**config, **tiny_overrides(config)}


def class_names(job: EmitJob) -> list[str]:
    """Classes of the repeated layers in transformers; empty where none is known and the model must be asked."""
    if job.hf_id or job.hf_config:
        return sorted({stack.block.class_name for stack in job.model.stacks} - {""})
    return [SHAPED_BLOCKS[shaped_config(job.model)["model_type"]]]


def config_text(config: Mapping[str, Any]) -> str:
    """JSON for people: a key a line, nested values on one line while they fit.

    Safe inside a raw triple-quoted Python string: JSON never holds three quotes in a row, and a backslash always
    comes before the character it escapes.
    """
    return _json(dict(config), indent=0)


def _json(value: Any, *, indent: int) -> str:
    flat = json.dumps(value)
    if (len(flat) + indent <= LINE_CHARS and indent) or not isinstance(value, dict | list) or not value:
        return flat
    pad = " " * (indent + 4)
    if isinstance(value, dict):
        lines = [f"{pad}{json.dumps(key)}: {_json(item, indent=indent + 4)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
    rows: list[str] = []
    row = ""
    for item in (_json(item, indent=indent + 4) for item in value):
        if row and len(row) + len(item) + indent > LINE_CHARS - 8:
            rows, row = [*rows, row], ""
        row = f"{row}, {item}" if row else item
    return "[\n" + ",\n".join(pad + line for line in [*rows, row]) + "\n" + " " * indent + "]"
