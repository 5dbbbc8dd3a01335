"""Configuration files as found: DeepSpeed's JSON as DeepSpeed reads it, accelerate's YAML, and what each of them is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import hjson
import yaml

from app.domain.errors import InvalidRequestError, Loc
from app.ingest.nesting import too_deep

_COMMENTED = re.compile(r"(?:\s*#[^\n]*\n)+\s*\{")
"""Comments before an object, as hjson takes them."""
MAX_DEPTH = 32
MAX_VALUES = 2_000
"""Keys and entries of one file."""
MAX_CHARS = 200_000

_ACCELERATE = {
    "compute_environment", "distributed_type", "fsdp_config", "deepspeed_config", "num_processes", "machine_rank", "main_process_port",
}  # fmt: skip
_ACCELERATE_DEEPSPEED = {
    "zero_stage", "deepspeed_config_file", "offload_optimizer_device", "offload_param_device", "zero3_init_flag", "zero3_save_16bit_model",
    "deepspeed_multinode_launcher", "deepspeed_moe_layer_cls_names",
}  # fmt: skip
_TRAINER = {
    "output_dir", "per_device_train_batch_size", "fsdp", "deepspeed", "num_train_epochs", "gradient_checkpointing", "learning_rate",
    "optim", "max_grad_norm", "save_only_model", "warmup_steps", "lr_scheduler_type",
}  # fmt: skip
_FSDP = {
    "sharding_strategy", "reshard_after_forward", "transformer_layer_cls_to_wrap", "auto_wrap_policy", "cpu_ram_efficient_loading",
    "state_dict_type", "use_orig_params", "backward_prefetch", "offload_params", "cpu_offload", "activation_checkpointing",
    "sync_module_states", "limit_all_gathers",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """A configuration as its library would read it.

    Attributes:
        config: keys and values.
        kind: ``deepspeed``, ``accelerate``, ``hf_trainer`` or ``fsdp``.
        duplicates: keys that the text has twice in one block, of which the last is in ``config``.
    """

    config: Mapping[str, Any]
    kind: str
    duplicates: tuple[str, ...] = ()


def read_text(text: str, kind: str | None = None, loc: Loc = ("text",)) -> ReadConfig:
    """Read a file as found.

    DeepSpeed reads its file with hjson, so comments, bare keys and trailing commas are taken; anything else is YAML.

    Args:
        kind: what it is; None to tell from its keys.
        loc: where errors point.

    Raises:
        InvalidRequestError: it is no configuration: where reading stopped, by line and column.
    """
    if not text.strip():
        raise InvalidRequestError.at(*loc, msg="nothing was given to read", hint="choose a file, or paste its text")
    if len(text) > MAX_CHARS:
        raise InvalidRequestError.at(*loc, msg=f"the file has {len(text):,} characters; at most {MAX_CHARS:,} are read")
    if "\N{REPLACEMENT CHARACTER}" in text:
        raise InvalidRequestError.at(*loc, msg="the file holds bytes that are not UTF-8", hint="save it as UTF-8")
    duplicates: list[str] = []
    braced = text.lstrip().startswith(("{", "[", "//", "/*")) or _COMMENTED.match(text) is not None
    value = _hjson(text, duplicates, loc) if kind == "deepspeed" or braced else _yaml(text, loc)
    found = read_object(value, kind, loc)
    return ReadConfig(config=found.config, kind=found.kind, duplicates=tuple(dict.fromkeys(duplicates)))


def read_object(value: Any, kind: str | None = None, loc: Loc = ("config",)) -> ReadConfig:
    """The same of a configuration that came as an object.

    Raises:
        InvalidRequestError: it is none, or larger or deeper than any configuration is.
    """
    if not isinstance(value, Mapping):
        what = "nothing" if value is None else f"a {type(value).__name__}, {str(value)[:60]!r}"
        raise InvalidRequestError.at(*loc, msg=f"the file holds {what}, not keys with values", hint="a configuration starts with {")
    if too_deep(value, MAX_DEPTH):
        raise _deep(loc)
    if (count := sum(1 for _ in _values(value))) > MAX_VALUES:
        raise InvalidRequestError.at(*loc, msg=f"the file has {count:,} values; at most {MAX_VALUES:,} are read")
    plain = _plain(value)
    return ReadConfig(config=plain, kind=kind or kind_of(plain))


def kind_of(config: Mapping[str, Any]) -> str:
    """What a configuration is, by its keys; DeepSpeed's where nothing tells.

    Example:
        >>> kind_of({"fsdp_config": {"fsdp_version": 2}}), kind_of({"zero_optimization": {}}), kind_of({"fsdp_sharding_strategy": 1})
        ('accelerate', 'deepspeed', 'fsdp')
    """
    keys = set(config)
    if "zero_optimization" in keys or "train_micro_batch_size_per_gpu" in keys or "train_batch_size" in keys:
        return "deepspeed"
    trainer = len(keys & _TRAINER)
    if keys & _ACCELERATE and not trainer:
        return "accelerate"
    if trainer:
        return "hf_trainer"
    if keys & _ACCELERATE_DEEPSPEED:
        return "accelerate"
    if any(key.removeprefix("fsdp_") in _FSDP or key.startswith("fsdp_") for key in keys):
        return "fsdp"
    return "deepspeed"


def _hjson(text: str, duplicates: list[str], loc: Loc) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in items:
            if key in seen:
                duplicates.append(str(key))
            seen[key] = value
        return seen

    try:
        return hjson.loads(text, object_pairs_hook=pairs)
    except hjson.HjsonDecodeError as error:
        where = f"at line {error.lineno}, column {error.colno}"
        hint = "give the file as DeepSpeed reads it: JSON, where comments and trailing commas are allowed"
        raise InvalidRequestError.at(*loc, msg=f"the file is not JSON {where}: {error.msg[:120]}", hint=hint) from error
    except RecursionError as error:
        raise InvalidRequestError.at(
            *loc, msg=f"the file is nested more than {MAX_DEPTH} deep", hint="give the configuration alone"
        ) from error
    except ValueError as error:
        raise InvalidRequestError.at(
            *loc, msg="the file is not JSON: it holds a number that cannot be read", hint="write it shorter"
        ) from error


def _deep(loc: Loc) -> InvalidRequestError:
    return InvalidRequestError.at(*loc, msg=f"the file is nested more than {MAX_DEPTH} deep", hint="give the configuration alone")


def _yaml(text: str, loc: Loc) -> Any:
    """YAML without aliases, which could stand for more than memory holds, and not too deep for its reader."""
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):
                raise InvalidRequestError.at(*loc, msg="the file uses YAML aliases (*name)", hint="write the values out")
            if depth > MAX_DEPTH:
                raise InvalidRequestError.at(
                    *loc, msg=f"the file is nested more than {MAX_DEPTH} deep", hint="give the configuration alone"
                )
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        msg = f"the file is not YAML{where}: {getattr(error, 'problem', None) or 'a value cannot be read'}"
        raise InvalidRequestError.at(*loc, msg=msg, hint="give a ds_config.json, an accelerate YAML or an fsdp_config") from error


def _values(value: Any) -> Iterator[Any]:
    """Everything in a configuration, one after the other."""
    waiting = [value]
    while waiting:
        inner = waiting.pop()
        yield inner
        if isinstance(inner, Mapping):
            waiting.extend(inner.values())
        elif isinstance(inner, list):
            waiting.extend(inner)


def _plain(value: Any) -> Any:
    """The same with text keys, as JSON has them, and dates as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
