"""What a run really took, as every door takes it: JSON, form, command line. Shared with the client, so it knows no database."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Counter = Literal["allocated", "reserved", "device"]
Peak = Annotated[int, Field(ge=1, le=2**50)]
Seconds = Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
Word = Annotated[str, Field(max_length=100)]
MAX_NOTE, MAX_ITEMS = 2_000, 30


class MeasurementIn(BaseModel):
    """One run of a saved plan; at least a peak, a step time, a rate of tokens or that it ran out of memory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    peak_bytes: Peak | None = Field(None, description="Peak of the busiest GPU, by the counter named.")
    counter: Counter | None = Field(
        None, description="torch.cuda.max_memory_allocated, max_memory_reserved, or what the driver and nvidia-smi show of the device."
    )
    step_s: Seconds | None = Field(None, description="Seconds of one optimizer step, after the first few.")
    tokens_per_s: Rate | None = Field(None, description="Tokens a second of all GPUs together.")
    oom: bool = Field(False, description="The run failed for want of GPU memory.")
    note: str = Field("", max_length=MAX_NOTE)
    other_peaks: dict[Counter, Peak] = Field({}, description="Peaks by other counters, to be shown.")
    moments: dict[Word, Peak] = Field({}, max_length=MAX_ITEMS, description="Peaks of allocated bytes by part of the step, to be shown.")
    expandable_segments: bool | None = Field(None, description="Whether torch allocated in expandable segments; null = not known.")
    versions: dict[Word, Word] = Field({}, max_length=MAX_ITEMS, description="Releases of torch and what trained with it.")
