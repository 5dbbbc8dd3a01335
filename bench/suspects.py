"""What is suspected behind the public rows that the memory model misses most, by what the rows themselves say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

CsvRow = dict[str, str]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A cause that cannot be told from the request, and the rows it touches."""

    cause: str
    touches: Callable[[CsvRow], bool]


def _source(name: str) -> Callable[[CsvRow], bool]:
    return lambda row: row["table_id"].startswith(name)


SUSPECTS = (
    Suspect(
        "litgpt accumulates without synchronising: FSDP1 then keeps whole gradients of its flat parameters, frozen ones included; "
        "the row does not say so",
        lambda row: _source("litgpt")(row) and row["framework"] == "fsdp1",
    ),
    Suspect(
        "the published value is below the four copies of 16-bit weights that full training of this model takes; another run's is likely",
        lambda row: _source("litgpt")(row) and row["peft"] == "full" and row["n_gpus"] == "1",
    ),
    Suspect(
        "litgpt unties the embedding from the head and keeps the chunks of the logits for backward",
        lambda row: _source("litgpt")(row) and row["tied"] == "true",
    ),
    Suspect(
        "bitsandbytes of that year kept the input of every quantised layer for backward; today's does not",
        lambda row: _source("litgpt")(row) and row["peft"] == "qlora",
    ),
    Suspect(
        "batches of unequal length, padded: the allocator keeps blocks of many sizes (the same model padded to one length takes a third "
        "less in the qwen rows)",
        _source("ms-swift"),
    ),
    Suspect(
        "the model's own code takes the loss of 16-bit logits as they are: 8 bytes a logit instead of 12",
        lambda row: _source("qwen")(row) and row["peft"] == "qlora",
    ),
    Suspect(
        "the embedding and the head are FSDP units of their own, and FSDP2 does not hold inputs of frozen units",
        lambda row: _source("torchtune")(row) and row["strategy"] == "full_shard",
    ),
    Suspect("fused normalisation and loss kernels that the row does not name", _source("fms-accel")),
    Suspect(
        "Liger's fused normalisation and feed-forward, which no field names, and larger buckets than those of our files", _source("stas00")
    ),
    Suspect("a compiled loss, which never holds the fp32 logits", lambda row: _source("torchtitan")(row) and "DeepSeek" in row["model"]),
    Suspect("indexing a stack of experts makes a gradient as large as the stack for each expert used", _source("axolotl")),
    Suspect("the sequence length is the default of a configuration file, not of the run", _source("internevo")),
)


def suspected(row: CsvRow) -> str:
    """The first suspect that touches the row, or that none is known."""
    return next((s.cause for s in SUSPECTS if s.touches(row)), "not known")
