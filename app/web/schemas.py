"""Shapes of the answers, for the OpenAPI document; the request's live in ``services/request.py``, which every door shares."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.services.request import PlanRequest
from app.web.measured_schemas import CalibrationOut

EXAMPLE_REQUEST: dict[str, Any] = {
    "model": {"preset": "llama-3.1-8b"},
    "training": {"seq_len": 8192, "global_batch": 64},
    "cluster": {"pools": [{"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": 1}]},
}
"""The question the home page answers, and the example of the API."""

Verdict = Literal["fits", "tight", "does_not_fit"]
FileName = Literal["ds_config.json", "ds_train.py", "fsdp2_train.py", "ddp_train.py", "accelerate.yaml", "launch.sh", "training_args.py"]
DialectName = Literal["plain", "hf_auto"]
OPEN = ConfigDict(extra="allow")
"""An answer may hold more than its shape says: a client keeps what a newer service adds."""


class SaveRequest(PlanRequest):
    """A PlanRequest to be kept, with the client's own words."""

    name: str = Field("", max_length=200)
    note: str = Field("", max_length=10_000)


class TermOut(BaseModel):
    """One line of a ledger; terms that are alive at the peak add up to the device total."""

    model_config = OPEN

    name: str
    category: Literal["parameters", "gradients", "optimizer_states", "activations", "logits", "buffers", "adapters", "overhead"]
    bytes: int
    moment: str
    formula: str
    source: str
    exactness: Literal["exact", "derived", "fitted"]


class GpuMemoryOut(BaseModel):
    """Memory of the busiest GPU."""

    model_config = OPEN

    terms: list[TermOut]
    peak_allocated_bytes: int = Field(description="torch allocated")
    peak_reserved_bytes: int = Field(description="torch reserved")
    peak_reserved_expandable_bytes: int = Field(description="torch reserved, with expandable segments as launch.sh sets them")
    device_bytes: int = Field(description="what nvidia-smi shows")
    peak_moment: str
    busiest_rank: str = Field(default="all ranks are alike", description="which GPU this is: ranks differ by pipeline stage")
    capacity_bytes: int
    fit_probability_frac: float
    interval_90_bytes: tuple[int, int] = Field(description="nine of ten measured peaks, allocated or reserved, lie between")


class PoolMemoryOut(BaseModel):
    """Memory of one node's host or disks."""

    model_config = OPEN

    terms: list[TermOut]
    peak_bytes: int
    capacity_bytes: int | None


class MemoryOut(BaseModel):
    """Memory by place."""

    model_config = OPEN

    gpu: GpuMemoryOut
    host_per_node: PoolMemoryOut
    nvme_per_node: PoolMemoryOut


class TimeOut(BaseModel):
    """Where one optimizer step goes."""

    model_config = OPEN

    step_s: float
    compute_s: float
    exposed_communication_s: float
    optimizer_s: float
    offload_s: float
    tokens_per_s_per_gpu: float
    tokens_per_s: float
    mfu_frac: float
    interval_90_s: tuple[float, float]


class CandidateOut(BaseModel):
    """One configuration with everything it costs."""

    model_config = OPEN

    settings: dict[str, Any]
    verdict: Verdict
    memory: MemoryOut
    communication: dict[str, Any]
    time: TimeOut
    cost: dict[str, float | None]


class SavedFilesOut(BaseModel):
    """Files of one kind in one save."""

    model_config = OPEN

    name: str = Field(description="as written, with what differs from file to file in braces")
    count: int
    bytes: int = Field(description="tensors in all of them; headers come on top")
    largest_bytes: int
    holds: str


class CheckpointOut(BaseModel):
    """What one save of the recommended settings writes, and what can be done with it."""

    model_config = OPEN

    layout: Literal["dcp", "deepspeed"]
    written_by: str
    per_save_bytes: int = Field(description="tensors over all ranks; what files and terms add up to")
    per_rank_bytes: int = Field(description="the most one rank writes")
    files: list[SavedFilesOut]
    terms: list[dict[str, Any]]
    exports: list[dict[str, Any]] = Field(description="ways to ordinary files: commands, host memory, bytes written")
    resume: dict[str, Any] = Field(description="on the same number of ranks, on another, and what to run before the latter")
    inference: dict[str, Any] = Field(description="weights in 16 bits, and what the cache grows by with every token")
    notes: list[str]


class WarningOut(BaseModel):
    """Something to know, with its fix."""

    model_config = OPEN

    code: str
    severity: Literal["info", "warning", "error"]
    message: str
    field: str
    fix: str


class AnswerOut(BaseModel):
    """What the answer of every engine so far has."""

    model_config = OPEN

    engine_version: str
    request: dict[str, Any]
    verdict: Verdict
    summary: str
    model: dict[str, Any]
    recommended: CandidateOut
    ideal: dict[str, dict[str, int]]
    alternatives: list[CandidateOut]
    ladder: list[dict[str, Any]]
    rejected: list[dict[str, Any]]
    search: dict[str, Any]
    warnings: list[WarningOut]
    files: dict[str, str]


class PlanOut(AnswerOut):
    """The answer to one request."""

    id: str | None
    calibration: CalibrationOut | None = Field(None, description="missing where no service planned")
    dialects: dict[str, dict[str, str]] = Field(description="the same plan for others: hf_auto for the Hugging Face Trainer")
    checkpoint: CheckpointOut


class SavedPlanOut(AnswerOut):
    """A saved plan: the answer as it was, possibly of an earlier engine, with what it is called and found by."""

    id: str
    name: str
    note: str
    created_at: datetime
    links: dict[str, str] = Field(description="the plan itself, and each of its files")
    dialect_links: dict[str, dict[str, str]]
    edit_token: str | None = Field(None, description="once, in the answer to the save: what deletes the plan")
    dialects: dict[str, dict[str, str]] = Field(default_factory=dict)
    checkpoint: CheckpointOut | None = None


class FindingOut(BaseModel):
    """What an audit says about one place of a configuration."""

    model_config = OPEN

    id: str
    severity: Literal["error", "warning", "info"]
    path: str = Field(description="dotted path of the key as written")
    message: str
    why: str
    fix: str
    source: str
    effect: Literal["fails", "ignored", "changed", "slow", "memory"]


class NotCheckedOut(BaseModel):
    """A rule that could not be put to the file."""

    model_config = OPEN

    id: str
    needs: str = Field(description="parts of the request it lacks")


class GainOut(BaseModel):
    """What our plan would gain over the file, for as many sequences a step."""

    model_config = OPEN

    memory_bytes: int = Field(description="of one GPU, less with our plan; negative where it takes more")
    step_s: float = Field(description="seconds a step, less with our plan")
    speedup: float = Field(description="step time of the file over that of our plan")


class AuditOut(BaseModel):
    """What an existing configuration does, and what would be better."""

    model_config = OPEN

    engine_version: str
    kind: Literal["deepspeed", "accelerate", "hf_trainer", "fsdp"]
    launcher: Literal["deepspeed", "hf_trainer", "accelerate"]
    versions: dict[str, str]
    summary: str
    findings: list[FindingOut]
    not_checked: list[NotCheckedOut]
    predicted: CandidateOut | None = Field(description="what the file costs as it will really run")
    not_predicted: str = Field(description="why there is no prediction; empty where there is")
    recommended: CandidateOut | None = Field(description="our plan for the same job")
    gain: GainOut | None
    assumed: list[str]
    corrected: dict[str, str] = Field(description="the file with everything mended that can be, by name")
    minimal: dict[str, str] = Field(description="the same without what says the default")


class PlanSummaryOut(BaseModel):
    """What a list shows of a saved plan."""

    model_config = OPEN

    id: str
    name: str
    created_at: datetime
    engine_version: str
    model_name: str
    gpu_name: str
    verdict: Verdict
    links: dict[str, str]


class PlanListOut(BaseModel):
    """One page of saved plans, the newest first."""

    model_config = OPEN

    items: list[PlanSummaryOut]
    next_cursor: str | None
    next: str | None = Field(description="address of the following page; null on the last")


class SweepOut(BaseModel):
    """A sweep, and how far it is."""

    model_config = OPEN

    id: str
    name: str
    created_at: datetime
    state: Literal["queued", "running", "done", "cancelled"]
    detail: Literal["figures", "plan"]
    axes: list[str] = Field(description="paths that the grid varies; empty for a list of requests")
    total: int = Field(description="requests")
    done: int = Field(description="rows there are, those with an error included")
    failed: int = Field(description="rows with an error: requests that are well-formed and make no sense")
    verdicts: dict[Verdict, int] = Field(description="rows that are plans, by verdict")
    engine_versions: list[str]
    expires_at: datetime | None = Field(description="when it is deleted; null until it is done or cancelled")
    links: dict[str, str]
    edit_token: str | None = Field(None, description="once, in the answer that made it: what cancels and deletes it")


class CatalogEntryOut(BaseModel):
    """One preset, with its figures."""

    model_config = OPEN

    key: str
    name: str


class CatalogOut(BaseModel):
    """One catalogue: its entries under its own name, and where their figures are from."""

    model_config = OPEN

    gpus: list[CatalogEntryOut] | None = None
    instances: list[CatalogEntryOut] | None = None
    models: list[CatalogEntryOut] | None = None
    sources: dict[str, Any] = Field(description="what the source keys of the entries stand for")


class FieldErrorOut(BaseModel):
    """One thing wrong with one field."""

    model_config = OPEN

    loc: list[str | int]
    msg: str
    hint: str


class ProblemOut(BaseModel):
    """RFC 9457 problem document."""

    model_config = OPEN

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldErrorOut]


MAX_PAGE = 100
"""Most plans in one page of a list, where ``SHARDPLAN_PAGE_SIZE_MAX`` says nothing else."""
Responses = dict[int | str, dict[str, Any]]
_TEXT = {"schema": {"type": "string"}}
PAGE: dict[str, Any] = {"text/html": _TEXT}
"""What a browser gets of an address that answers everything else with JSON."""


def problems(*statuses: int) -> Responses:
    """Problem answers of an endpoint, for its OpenAPI entry; a client that prefers HTML gets a page."""
    schema = ProblemOut.model_json_schema()
    # Written out in place: a reference would need an entry among the document's components, which only FastAPI makes.
    schema["properties"]["errors"]["items"] = schema.pop("$defs")["FieldErrorOut"]
    content = {"application/problem+json": {"schema": schema}} | PAGE
    slow = (408,) if 413 in statuses else ()  # whoever reads a body may wait for it in vain
    return {status: {"description": _MEANING[status], "content": content} for status in sorted({*statuses, *slow})}


def files(*media_types: str) -> Responses:
    """A generated file as the answer of an endpoint, for its OpenAPI entry."""
    content = {media_type: {"schema": {"type": "object"}} if media_type.endswith("json") else _TEXT for media_type in media_types}
    return {200: {"description": "The file", "content": content}}


_MEANING = {
    400: "The body is not JSON", 401: "There is no key, or not a right one", 403: "The edit token is another one",
    404: "There is no such thing", 408: "The body came too slowly", 409: "Not possible for this plan", 413: "The body is too large",
    415: "The body is not said to be JSON", 421: "This service is not reached by that host name", 422: "The request is not valid",
    429: "Too many requests from this client; try again", 503: "The database does not answer; try again",
}  # fmt: skip
