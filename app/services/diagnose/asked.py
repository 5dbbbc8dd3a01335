"""The question of a diagnosis: a log or a measurement, and of the request whatever is known."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.ingest.logs import MAX_CHARACTERS
from app.services.request import ClusterIn, ModelIn, PlanRequest, TrainingIn

_STRICT = ConfigDict(extra="forbid", frozen=True)
USUAL_SEQUENCE = 2048
"""Tokens taken where nobody said how long the sequences are."""


class MeasuredIn(BaseModel):
    """What was measured beside or instead of a log."""

    model_config = _STRICT

    peak_bytes: int | None = Field(None, ge=1, le=2**50, description="Highest memory of one GPU.")
    counter: Literal["allocated", "reserved", "device"] = Field("allocated", description="Which counter that is.")
    step_s: float | None = Field(None, ge=1e-6, le=1e7, allow_inf_nan=False, description="Seconds of one optimizer step.")


class PartialTraining(TrainingIn):
    """The recipe as far as it is known."""

    @model_validator(mode="after")
    def _length(self) -> PartialTraining:
        if self.seq_len is not None and self.tokens_from is not None:
            raise ValueError("give either seq_len or tokens_from, e.g. seq_len 8192")
        return self


class PartialRequest(PlanRequest):
    """A PlanRequest of which parts may be missing; what is missing is said in the answer."""

    model: ModelIn | None = None  # type: ignore[assignment]
    training: PartialTraining = Field(default_factory=lambda: PartialTraining())
    cluster: ClusterIn | None = None  # type: ignore[assignment]

    @property
    def knows_length(self) -> bool:
        """Whether the tokens of a sequence are given."""
        return self.training.seq_len is not None or self.training.tokens_from is not None

    def whole(self, cluster: ClusterIn) -> PlanRequest:
        """The same as a question that can be planned, with the usual length where none is given.

        Args:
            cluster: taken where the request has none.
        """
        training: dict[str, Any] = self.training.model_dump(exclude_unset=True)
        if not self.knows_length:
            training["seq_len"] = USUAL_SEQUENCE
        return PlanRequest(
            model=self.model or ModelIn(params=7e9), training=TrainingIn.model_validate(training), cluster=self.cluster or cluster,
            constraints=self.constraints, companions=self.companions,
            headroom_frac=self.headroom_frac, deepspeed_version=self.deepspeed_version,
            torch_version=self.torch_version,
        )  # fmt: skip


class DiagnoseIn(BaseModel):
    """A log or a measurement of a run, with its request."""

    model_config = _STRICT

    text: str = Field("", max_length=MAX_CHARACTERS, description="The end of the log: the error with its traceback, or the step times.")
    measured: MeasuredIn = Field(default_factory=MeasuredIn)
    request: PartialRequest | None = None
