"""Where the settings of FSDP, DeepSpeed and parallelism are in each kind of file, and how the libraries read their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from app.audit.finding import Change
from app.audit.reading import block, whole
from app.audit.subject import NOTHING, Kind, Subject
from app.domain.parallel.fsdp_names import SHARDINGS

FSDP_FILES: frozenset[Kind] = frozenset({"accelerate", "fsdp", "hf_trainer"})
ACCELERATE: frozenset[Kind] = frozenset({"accelerate"})
TRAINER: frozenset[Kind] = frozenset({"hf_trainer"})
PREFIX = "fsdp_"
YES = ("y", "yes", "t", "true", "on", "1")
NO = ("n", "no", "f", "false", "off", "0")
WHOLE_FILE = ("compute_environment", "distributed_type", "fsdp_config", "deepspeed_config", "parallelism_config")
DEEPSPEED_KEYS = frozenset({
    "deepspeed_config_file", "zero_stage", "offload_optimizer_device", "offload_param_device", "offload_optimizer_nvme_path",
    "offload_param_nvme_path", "gradient_accumulation_steps", "gradient_clipping", "zero3_init_flag", "zero3_save_16bit_model",
    "deepspeed_hostfile", "deepspeed_exclusion_filter", "deepspeed_inclusion_filter", "deepspeed_multinode_launcher",
    "deepspeed_moe_layer_cls_names",
})  # fmt: skip
"""What accelerate's ``deepspeed_config`` block may hold."""

STRATEGIES = tuple(row.fsdp1 for row in SHARDINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Settings of FSDP by their names without the prefix.

    Attributes:
        root: path of the block in the file; empty where the file is the block.
        values: by name without ``fsdp_``.
        written: each name as the file spells it.
        trainer: read by TrainingArguments; by accelerate's launcher otherwise.
        version: of FSDP, the reader's default where none is written: 1 for accelerate, 2 for the Trainer.
        implied: settings that words of the Trainer's ``fsdp`` stand for, where the block does not say them.
    """

    root: str
    values: Mapping[str, Any]
    written: Mapping[str, str]
    trainer: bool
    version: int
    implied: Mapping[str, Any] = field(default_factory=dict)

    def path(self, name: str) -> str:
        """Dotted path of a setting, as written or as it would be."""
        return f"{self.root}.{self._spelled(name)}" if self.root else self._spelled(name)

    def put(self, name: str, value: Any) -> Change:
        """The edit that writes a setting."""
        return Change(path=(*self._steps(), self._spelled(name)), value=value)

    def drop(self, name: str) -> Change:
        """The edit that takes a setting out."""
        return Change(path=(*self._steps(), self._spelled(name)), remove=True)

    def has(self, name: str) -> bool:
        """Whether the setting is written, even as null."""
        return name in self.values

    def get(self, name: str, default: Any = None) -> Any:
        """The setting as written or implied."""
        return self.values.get(name, self.implied.get(name, default))

    def text(self, name: str, default: str = "") -> str:
        """The setting as upper-case text, as names of strategies and policies are compared; null is as good as missing."""
        said = self.get(name)
        return (default if said is None else str(said)).upper()

    def flag(self, name: str, default: bool = False) -> bool:
        """The setting as a truth value; the default where it is missing or none."""
        found = truth(self.get(name))
        return default if found is None else found

    def _steps(self) -> tuple[str, ...]:
        return (self.root,) if self.root else ()

    def _spelled(self, name: str) -> str:
        return self.written.get(name, name if self.trainer else PREFIX + name)


def truth(value: Any) -> bool | None:
    """What accelerate's ``str_to_bool`` makes of a value; None where it refuses it.

    Example:
        >>> truth("Yes"), truth(False), truth("FULL_SHARD"), truth(None)
        (True, False, None, None)
    """
    text = str(value).lower()
    return True if text in YES else False if text in NO else None


def near(word: object, words: Mapping[str, Any] | frozenset[str] | tuple[str, ...]) -> str:
    """The word of a list that was probably meant; empty where none is like it.

    Example:
        >>> near("fsdp_offload_parms", ("fsdp_offload_params", "fsdp_version"))
        'fsdp_offload_params'
    """
    return next(iter(get_close_matches(str(word), list(words), n=1, cutoff=0.75)), "")


def is_whole(subject: Subject) -> bool:
    """Whether an accelerate file is the whole YAML and not the inner block of it."""
    return subject.kind == "accelerate" and any(key in subject.config for key in WHOLE_FILE)


def distributed_type(subject: Subject) -> str:
    """The kind of job an accelerate YAML asks for; guessed from its blocks where it says none."""
    if "distributed_type" in subject.config:
        said = subject.config["distributed_type"]
        return "NO" if said is False else str(said)
    if is_whole(subject):
        return "FSDP" if "fsdp_config" in subject.config else "DEEPSPEED" if "deepspeed_config" in subject.config else ""
    flat = any(str(key).startswith(PREFIX) for key in subject.config)
    return "FSDP" if flat else "DEEPSPEED" if DEEPSPEED_KEYS & set(subject.config) else ""


def fsdp_block(subject: Subject) -> Block | None:
    """The settings of FSDP; None where the file does not ask for FSDP."""
    config, trainer = subject.config, subject.kind == "hf_trainer" or (subject.kind == "fsdp" and subject.launcher == "hf_trainer")
    nested = "fsdp_config" in config
    if subject.kind == "accelerate" and distributed_type(subject) != "FSDP":
        return None
    if subject.kind == "hf_trainer" and not _trainer_shards(config):
        return None
    if subject.kind == "deepspeed":
        return None
    root = "fsdp_config" if nested or subject.kind == "hf_trainer" or is_whole(subject) else ""
    values = block(config, "fsdp_config") if root else config
    written = {str(key).removeprefix(PREFIX): str(key) for key in values}
    named = {str(key).removeprefix(PREFIX): value for key, value in values.items()}
    version = _version(named.get("version"), trainer)
    implied = _implied(legacy(subject), version)
    return Block(root=root, values=named, written=written, trainer=trainer, version=version, implied=implied)


def legacy(subject: Subject) -> list[str]:
    """Words of the Trainer's ``fsdp`` where it is text or a list."""
    said = subject.config.get("fsdp") if subject.kind == "hf_trainer" else None
    return said.split() if isinstance(said, str) else [str(word) for word in said] if isinstance(said, list) else []


def _implied(words: list[str], version: int) -> dict[str, Any]:
    found: dict[str, Any] = {"cpu_offload": True} if "offload" in words else {}
    for word in words:
        if version == 1 and word.upper() in STRATEGIES:
            found["reshard_after_forward"] = word
        elif word in ("full_shard", "shard_grad_op"):
            found.setdefault("reshard_after_forward", word == "full_shard")
    return found


def _trainer_shards(config: Mapping[str, Any]) -> bool:
    """A block without the ``fsdp`` that switches it on was meant, and a rule says what it lacks."""
    return bool(config["fsdp"]) if "fsdp" in config else bool(block(config, "fsdp_config"))


def _version(value: Any, trainer: bool) -> int:
    found = whole(value) if not isinstance(value, str) else {"1": 1, "2": 2}.get(value)
    return found if found in (1, 2) else 2 if trainer else 1


def deepspeed_block(subject: Subject) -> tuple[str, Mapping[str, Any]] | None:
    """Path and contents of accelerate's DeepSpeed settings; None where the file does not ask for DeepSpeed."""
    if subject.kind != "accelerate" or distributed_type(subject) != "DEEPSPEED":
        return None
    return ("deepspeed_config", block(subject.config, "deepspeed_config")) if is_whole(subject) else ("", subject.config)


def joined(root: str, key: str) -> str:
    """A dotted path under a block that may be the file itself."""
    return f"{root}.{key}" if root else key


def steps(root: str, key: str) -> tuple[str, ...]:
    """The same place as the path of a change."""
    return (root, key) if root else (key,)


def trainer_arguments(subject: Subject) -> Mapping[str, Any]:
    """TrainingArguments, whether they are the file or came beside it."""
    return subject.config if subject.kind == "hf_trainer" else subject.arguments or NOTHING


def mixed_precision(subject: Subject) -> str:
    """``no``, ``bf16``, ``fp16`` or ``fp8`` as the library will have it; of a bare block, what the training asks for, else bf16."""
    if subject.kind == "hf_trainer":
        return "bf16" if subject.config.get("bf16") else "fp16" if subject.config.get("fp16") else "no"
    said, beside = subject.config.get("mixed_precision"), subject.arguments
    if said is None and (subject.kind == "fsdp" or not is_whole(subject)):
        named = next((name for name in ("bf16", "fp16") if beside.get(name)), "")
        asked = named or (subject.training.precision if subject.training is not None else "bf16")
        return "no" if asked == "fp32" else asked
    return "no" if said is None or said is False else str(said).lower()


def grad_accum(subject: Subject) -> int:
    """Micro-steps between optimizer steps: as the file says, else as the request does, else 1."""
    said = whole(trainer_arguments(subject).get("gradient_accumulation_steps"))
    if said is None and subject.training is not None:
        said = subject.training.grad_accum
    return said if said and said > 0 else 1


def processes(subject: Subject) -> int | None:
    """Ranks of the job: as the YAML says, else as the cluster has."""
    said = whole(subject.config.get("num_processes")) if subject.kind == "accelerate" else None
    return said if said and said > 0 else subject.ranks
