"""What files and advice are worked out from: the recommended settings beside the model and the recipe they are for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from app.domain.checkpoint.tensors import Tensors, trained_tensors
from app.domain.model.architecture import Architecture
from app.domain.parallel.strategy import ZERO_STAGES
from app.domain.plan import Settings
from app.domain.recipe.precision import StoredDtypes, dtype_bytes, stored_dtypes
from app.domain.recipe.recipe import Recipe
from app.domain.setup import Numbers, frozen_bytes_each, numbers_of, state_bytes_each


@dataclass(frozen=True, kw_only=True)
class Situation:
    """One candidate whose checkpoints are planned."""

    model: Architecture
    recipe: Recipe
    settings: Settings

    @cached_property
    def numbers(self) -> Numbers:
        """Counts of the model under the recipe."""
        return numbers_of(self.model, self.recipe)

    @cached_property
    def tensors(self) -> tuple[Tensors, ...]:
        """The trained tensors."""
        return trained_tensors(self.model, self.recipe)

    @cached_property
    def dtypes(self) -> StoredDtypes:
        """What the framework holds each kind of tensor in."""
        return stored_dtypes(self.settings.framework, self.recipe)

    @property
    def param_bytes(self) -> float:
        """Bytes of one trained weight as it is stored."""
        return dtype_bytes(self.dtypes.param)

    @property
    def frozen_bytes(self) -> float:
        """Bytes of one frozen weight, averaged over quantised and other ones."""
        return frozen_bytes_each(self.numbers, self.dtypes)

    @property
    def state_bytes(self) -> float:
        """Bytes of the optimizer's states for one trained weight."""
        return state_bytes_each(self.numbers, self.recipe, self.settings.framework, self.dtypes)

    @property
    def stage(self) -> int:
        """DeepSpeed's stage."""
        return ZERO_STAGES[self.settings.strategy]

    @property
    def adapted(self) -> bool:
        """Whether an adapter is trained instead of the model."""
        return self.recipe.adapter is not None

    @property
    def scripted(self) -> bool:
        """Whether a training script is written for the plan; else a trainer of the user's own saves."""
        s, adapter = self.settings, self.recipe.adapter
        if self.model.kind == "diffusion" or not self.model.vocab_size or s.pipeline_parallel * s.sequence_parallel * s.expert_parallel > 1:
            return False
        return not (s.framework == "fsdp2" and adapter and adapter.kind == "qlora") and not (s.framework == "ddp" and s.tensor_parallel > 1)

    def script(self, name: str) -> str:
        """Who saves: the script of this name, or what takes its place."""
        return name if self.scripted else "a trainer of your own"
