"""The request of an audit: a configuration, and as much of model, training and GPUs as is known."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.ingest.config_text import MAX_CHARS
from app.services.request import ClusterIn, ConstraintsIn, ModelIn, Release, TrainingIn

Kind = Literal["deepspeed", "accelerate", "hf_trainer", "fsdp"]
Launcher = Literal["deepspeed", "hf_trainer", "accelerate"]
_STRICT = ConfigDict(extra="forbid", frozen=True)


class VersionsIn(BaseModel):
    """Releases of the libraries; null is the newest that was checked."""

    model_config = _STRICT

    deepspeed: Release | None = Field(None, examples=["0.19.8"])
    torch: Release | None = Field(None, examples=["2.13.0"])
    transformers: Release | None = None
    accelerate: Release | None = None


class AuditRequest(BaseModel):
    """One configuration to be read against what it is for."""

    model_config = _STRICT

    config: Any = Field(None, description="The configuration as an object.", examples=[{"zero_optimization": {"stage": 2}}])
    text: str | None = Field(None, max_length=MAX_CHARS, description="Or the file as found: DeepSpeed's JSON, or YAML.")
    kind: Kind | None = Field(None, description="What the file is; null = told from its keys.")
    launcher: Launcher | None = Field(
        None,
        description='Who starts the job, which decides what "auto" means; null = the Trainer where the file says auto',
    )
    versions: VersionsIn = Field(default_factory=VersionsIn)
    arguments: dict[Annotated[str, Field(max_length=100)], Any] | None = Field(
        None, max_length=300, description="TrainingArguments that go with a DeepSpeed file."
    )
    client_optimizer: str | None = Field(
        None, max_length=200, description="Class of the optimizer the script hands over, e.g. torch.optim.AdamW."
    )
    world_size: int | None = Field(None, ge=1, le=2**20, description="Ranks of the job, where no cluster is given.")
    model: ModelIn | None = None
    training: TrainingIn | None = None
    cluster: ClusterIn | None = None
    constraints: ConstraintsIn = Field(
        default_factory=ConstraintsIn, description="Degrees of tensor, pipeline, sequence and expert parallelism."
    )
    headroom_frac: float = Field(0.05, ge=0, lt=0.9, allow_inf_nan=False)

    @model_validator(mode="after")
    def _one_of(self) -> AuditRequest:
        if (self.config is None) == (self.text is None):
            raise ValueError("give either config, the configuration as an object, or text, the file as found")
        return self
