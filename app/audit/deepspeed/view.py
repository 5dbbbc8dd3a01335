"""A ds_config.json read as its release reads it: defaults filled, deprecated keys converted, "auto" as the launcher resolves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.audit.deepspeed.keys import known_keys, parse
from app.audit.reading import MISSING, at, block, has, whole
from app.audit.subject import Subject
from app.domain.versions import release_of

AUTO = "auto"
HF = frozenset({"hf_trainer", "accelerate"})
ZERO, OPTIMIZER, PARAM = "zero_optimization", "zero_optimization.offload_optimizer", "zero_optimization.offload_param"
DEVICES = ("cpu", "nvme")
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
FROM_HIDDEN: Mapping[str, Callable[[int], int]] = {
    "zero_optimization.reduce_bucket_size": lambda hidden: hidden * hidden,
    "zero_optimization.stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "zero_optimization.stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""What the Trainer and accelerate write for "auto" of a model whose hidden size is known."""


class View:
    """The configuration of a subject, key by key.

    Nothing here raises: what cannot be read counts as left out, and the rules about parsing speak of it.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.config = subject.deepspeed
        self.release = subject.release("deepspeed")

    def written(self, path: str) -> bool:
        """Whether the key is in the file under either of its names, whatever its value."""
        return self.name_of(path) != ""

    def name_of(self, path: str) -> str:
        """The path under which the file has the key; empty where it has not."""
        known = known_keys().get(path)
        for name in (path, f"{known.block}.{known.also}" if known and known.also else ""):
            if name and has(self.config, name):
                return name
        return ""

    def raw(self, path: str) -> Any:
        """The value as written; None where there is none."""
        return at(self.config, self.name_of(path) or path)

    def set(self, path: str) -> bool:
        """Whether the file gives the key a value that DeepSpeed reads: "auto" is as good as absent."""
        return self.written(path) and self.raw(path) != AUTO and not self._parsed(path).wrong

    def value(self, path: str) -> Any:
        """The value in effect; None where "auto" becomes something that is not known here."""
        raw = self.raw(path)
        if raw == AUTO and self.subject.launcher in HF and path in FROM_HIDDEN and (self.stage == 3 or path.endswith("reduce_bucket_size")):
            return FROM_HIDDEN[path](self.subject.model.hidden_size) if self.subject.model else None
        if raw == AUTO and self.subject.launcher in HF and known_keys()[path].block in ("", "bf16", "fp16"):
            return None
        return self._parsed(path).value if self.set(path) else known_keys()[path].default(self.release)

    def number(self, path: str) -> int:
        """An integer in effect; its default where "auto" is not resolved."""
        value = whole(self.value(path))
        return value if value is not None else whole(known_keys()[path].default(self.release)) or 0

    def on(self, path: str) -> bool:
        """Whether a flag is in effect."""
        return bool(self.value(path))

    def newer(self, release: str) -> bool:
        """Whether the release is that one or newer."""
        return release_of(self.release) >= release_of(release)

    def _parsed(self, path: str) -> Any:
        return parse(known_keys()[path], self.raw(path), self.release)

    @property
    def zero(self) -> Mapping[str, Any]:
        """The block of ZeRO; empty where there is none."""
        return block(self.config, ZERO)

    @property
    def stage(self) -> int:
        """ZeRO's stage; the short form true is stage 1."""
        given = at(self.config, ZERO)
        if isinstance(given, bool):
            return int(given)
        stage = self._parsed("zero_optimization.stage").value if self.set("zero_optimization.stage") else 0
        return stage if isinstance(stage, int) else 0

    def device(self, path: str) -> str:
        """Where an offload block of ZeRO points to, a deprecated key included: none, cpu or nvme."""
        if self.written(path):
            given = at(self.config, path)
            device = self.value(f"{path}.device") if isinstance(given, Mapping) else None
            return device if device in DEVICES else "none"
        old = {OPTIMIZER: "zero_optimization.cpu_offload", PARAM: "zero_optimization.cpu_offload_param"}[path]
        return "cpu" if self.on(old) else "none"

    @property
    def config_has_zenflow(self) -> bool:
        """Whether ZenFlow's block is there, empty or not."""
        return isinstance(at(self.config, "zero_optimization.zenflow"), Mapping)

    @property
    def precision(self) -> str | None:
        """Of the weights: bf16, fp16 or fp32; None where the launcher's arguments decide and are not known."""
        return _precision(self)

    @property
    def optimizer(self) -> str:
        """The optimizer named in the file; empty where there is none."""
        named = at(self.config, "optimizer.type")
        return named if isinstance(named, str) else ""

    @property
    def tensor_parallel(self) -> int:
        """Ranks that AutoTP splits the layers over."""
        return max(1, self.number("tensor_parallel.autotp_size"), self.subject.degrees.tensor_parallel)

    @property
    def sequence_parallel(self) -> int:
        """Ranks that share a sequence."""
        return max(1, self.number("sequence_parallel_size"), self.subject.degrees.sequence_parallel)

    @property
    def shards(self) -> int | None:
        """Ranks that ZeRO shards over: all but those of tensor and pipeline parallelism; None where unknown."""
        ranks = self.subject.ranks
        return None if ranks is None else max(1, ranks // self.tensor_parallel // max(1, self.subject.degrees.pipeline_parallel))

    @property
    def swaps_optimizer(self) -> bool:
        """Whether the optimizer's states go to a drive, which only stage 3 does."""
        return self.stage == 3 and self.device(OPTIMIZER) == "nvme"

    @property
    def swaps_parameters(self) -> bool:
        """Whether parameters go to a drive."""
        return self.stage == 3 and self.device(PARAM) == "nvme"


def _precision(view: View) -> str | None:
    name = "bf16" if has(view.config, "bf16") else "bfloat16"
    unknown = False
    for kind, place in (("bf16", name), ("fp16", "fp16")):
        raw = at(view.config, f"{place}.enabled", MISSING)
        if raw == AUTO and view.subject.launcher in HF:
            given = _argument(view.subject, kind)
            if given is None:
                unknown = True
            elif given:
                return kind
        elif raw is not MISSING and raw != AUTO and parse(known_keys()[f"{kind}.enabled"], raw, view.release).value:
            return kind
    if not unknown:
        return "fp32"
    return (
        view.subject.training.precision if view.subject.training and view.subject.training.precision in ("bf16", "fp16", "fp32") else None
    )


def _argument(subject: Subject, kind: str) -> bool | None:
    given = subject.arguments.get(kind)
    if isinstance(given, bool):
        return given
    if subject.arguments and any(isinstance(subject.arguments.get(other), bool) for other in ("bf16", "fp16")):
        return False
    return None
