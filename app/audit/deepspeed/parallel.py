"""Rules about tensor, pipeline and sequence parallelism beside ZeRO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.audit.deepspeed.common import DS, drop, edit
from app.audit.deepspeed.view import ZERO, View
from app.audit.finding import Change, Hit
from app.audit.reading import at, has, whole
from app.audit.registry import Card, rule
from app.audit.subject import Subject

STAGE = f"{ZERO}.stage"
SP_DTYPE = "seq_parallel_communication_data_type"


@rule("DS051", Card(title="fp32 gradients under sequence parallelism", severity="info", effect="slow", kinds=DS, source="ds-engine",
                    why="With sequence parallelism gradients travel in seq_parallel_communication_data_type, fp32 by default, "
                        "whatever communication_data_type says.",
                    fix="write bf16 where that is precise enough"))  # fmt: skip
def sequence_dtype(subject: Subject) -> Iterator[Hit]:
    """SP > 1 without the key."""
    view = View(subject)
    if view.sequence_parallel > 1 and not view.set(SP_DTYPE):
        asked = view.value("communication_data_type")
        over = f"; communication_data_type {asked} is not used" if asked else ""
        yield Hit(path=SP_DTYPE, message=f"With {view.sequence_parallel} ranks a sequence, gradients travel in fp32{over}.",
                  changes=(edit(SP_DTYPE, "fp32"),))  # fmt: skip


@rule("DS052", Card(title="pipeline with ZeRO-2 or 3", severity="error", effect="fails", kinds=DS, source="ds-pipe",
                    why="The pipeline engine asserts that gradients are not partitioned: stage 0 or 1, and so without parameter offload.",
                    fix="stage 1"))  # fmt: skip
def pipeline_stage(subject: Subject) -> Iterator[Hit]:
    """A pipeline beside stage 2 or 3."""
    view, stages = View(subject), _pipeline(subject)
    if stages > 1 and view.stage >= 2:
        yield Hit(
            path=STAGE, message=f"ZeRO-{view.stage} cannot be combined with a pipeline of {stages} stages.", changes=(edit(STAGE, 1),)
        )


def _pipeline(subject: Subject) -> int:
    return max(subject.degrees.pipeline_parallel, whole(at(subject.deepspeed, "pipeline.stages")) or 1)


@rule("DS063", Card(title="tensor-parallel size under another name", severity="error", effect="fails", kinds=DS, source="ds-tensor",
                    why="The block's key is autotp_size; tp_size is an unknown key there, and belongs to its inner block tp.",
                    fix="tensor_parallel.autotp_size"))  # fmt: skip
def tp_size_key(subject: Subject) -> Iterator[Hit]:
    """tensor_parallel.tp_size."""
    path, right = "tensor_parallel.tp_size", "tensor_parallel.autotp_size"
    if has(subject.deepspeed, path):
        size = whole(at(subject.deepspeed, path))
        moves: tuple[Change, ...] = (edit(right, size),) if size is not None and not has(subject.deepspeed, right) else ()
        yield Hit(path=path, message="tensor_parallel has no key tp_size.", changes=(drop(path), *moves))


@rule("DS078", Card(title="sequence-parallel degree that the heads do not "
                          "allow", severity="error", effect="fails", kinds=DS, source="ulysses",
                    needs=("model",), fix="a degree that divides the query heads, and divides or is a multiple of the key-value heads",
                    why="Ulysses gives each rank whole heads: query heads % sp must be 0, and kv heads % sp or sp % kv "
                        "heads."))  # fmt: skip
def ulysses_heads(subject: Subject) -> Iterator[Hit]:
    """Heads beside the degree, with the degrees that work."""
    view, model, size = View(subject), subject.model, View(subject).sequence_parallel
    if model is None or size < 2 or model.num_heads < 1:
        return
    heads, kv = model.num_heads, model.num_kv_heads or model.num_heads
    if heads % size == 0 and (kv % size == 0 or size % kv == 0):
        return
    work = [n for n in range(2, heads + 1) if heads % n == 0 and (kv % n == 0 or n % kv == 0)]
    near = max((n for n in work if n <= size), default=0)
    written = view.set("sequence_parallel_size")
    changes: tuple[Change, ...] = ()
    if written:
        changes = (edit("sequence_parallel_size", near),) if near else (drop("sequence_parallel_size"), drop("data_parallel_size"))
        if near and subject.ranks and has(view.config, "data_parallel_size"):
            changes = (*changes, edit("data_parallel_size", max(1, subject.ranks // near)))
    yield Hit(path="sequence_parallel_size", changes=changes,
              message=f"{heads} query and {kv} key-value heads cannot be dealt to {size} ranks; "
                      f"{', '.join(map(str, work)) or 'no degree'} would work.")  # fmt: skip


@rule("DS100", Card(title="AutoTP degree that does not divide", severity="error", effect="fails", kinds=DS, source="ds-tensor",
                    why="The ranks are cut into groups of autotp_size, and query heads are dealt to them.",
                    fix="a size that divides the ranks and the heads"))  # fmt: skip
def autotp_size(subject: Subject) -> Iterator[Hit]:
    """autotp_size beside ranks and heads."""
    view, path = View(subject), "tensor_parallel.autotp_size"
    size, ranks, model = view.number(path), subject.ranks, subject.model
    if size < 2:
        return
    if ranks and ranks % size:
        yield Hit(path=path, message=f"{ranks} ranks are not divisible by autotp_size {size}.", changes=(drop(path),))
    elif model and model.num_heads and model.num_heads % size:
        yield Hit(path=path, message=f"{model.num_heads} query heads are not divisible by autotp_size "
                                     f"{size}.", severity="warning", effect="slow",
                  changes=(drop(path),))  # fmt: skip


EP = "expert_parallel"


@rule("DS101", Card(title="AutoEP with what it excludes", severity="error", effect="fails", kinds=DS, source="ds-config", since="0.19.2",
                    why="AutoEP at stage 3 takes no sequence parallelism, hpZ or quantized gradients, and folded with AutoTP no ZeRO "
                        "offload.",
                    fix="stage 1 with AutoEP, or without these"))  # fmt: skip
def autoep(subject: Subject) -> Iterator[Hit]:
    """AutoEP beside stage 3's options and beside AutoTP with offload."""
    view = View(subject)
    settings = at(view.config, EP)
    if not isinstance(settings, Mapping) or settings.get("enabled") is not True:
        return
    if view.stage == 3:
        for key, on in (("zero_hpz_partition_size", view.number(f"{ZERO}.zero_hpz_partition_size") > 1),
                        ("zero_quantized_gradients", view.on(f"{ZERO}.zero_quantized_gradients"))):  # fmt: skip
            if on:
                yield Hit(path=f"{ZERO}.{key}", message=f"AutoEP at stage 3 does not take {key}.", changes=(drop(f"{ZERO}.{key}"),))
    if view.number("tensor_parallel.autotp_size") > 1:
        for name in ("offload_optimizer", "offload_param"):
            path = f"{ZERO}.{name}"
            if view.device(path) != "none":
                yield Hit(path=path, message=f"AutoEP folded with AutoTP does not take {name}.", changes=(drop(path),))
