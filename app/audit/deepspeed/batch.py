"""Rules about the three batch numbers and what else says how large a batch is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.audit.deepspeed.common import DS, LAUNCHED_BY_HF, drop, edit
from app.audit.deepspeed.effective import DTYPES
from app.audit.deepspeed.keys import shown
from app.audit.deepspeed.triple import ACCUM, MICRO, TRAIN, triple
from app.audit.deepspeed.view import AUTO, BATCH, View
from app.audit.finding import Change, Hit
from app.audit.reading import MISSING, at, block, has, whole
from app.audit.registry import Card, rule
from app.audit.subject import Subject


@rule("DS002", Card(title="batch numbers that do not multiply up", severity="error", effect="fails", kinds=DS, source="ds-config",
                    why="The engine checks that train_batch_size = micro-batch × accumulation × data-parallel ranks, exactly.",
                    fix="write the micro-batch and the accumulation only, and let the product follow"))  # fmt: skip
def batch_product(subject: Subject) -> Iterator[Hit]:
    """The equality that stops the engine, with this job's numbers."""
    batch = triple(View(subject))
    if batch.ranks is None or batch.train is None or batch.micro is None or batch.accum is None or len(batch.given) < 1:
        return
    product = batch.micro * batch.accum * batch.ranks
    if product == batch.train or min(batch.micro, batch.accum) < 1:
        return
    said = f"{batch.micro} × {batch.accum} × {batch.ranks} = {product:,} is not train_batch_size {batch.train:,}"
    written = [key for key in BATCH if has(subject.deepspeed, key)]
    if MICRO in written and ACCUM in written:
        changes: tuple[Change, ...] = (drop(TRAIN),)
    else:
        changes = (drop(TRAIN), edit(MICRO, batch.micro), edit(ACCUM, batch.accum))
    fits = batch.micro * batch.accum
    hint = f"; the file is for {batch.train // fits} rank(s)" if batch.train % fits == 0 and len(batch.given) == 3 else ""
    launch = " If more ranks were meant, start them with the deepspeed or torchrun launcher." if hint else ""
    yield Hit(path=TRAIN, message=f"{said}{hint}.{launch}", changes=changes)


@rule("DS094", Card(title="batch number that is no whole number", severity="error", effect="fails", kinds=DS, source="ds-config",
                     why="The batch numbers are not converted: a text never equals a number, and a fraction fails the check.",
                     fix="write a plain integer"))  # fmt: skip
def batch_type(subject: Subject) -> Iterator[Hit]:
    """Quoted and fractional batch numbers."""
    for key in BATCH:
        value = at(subject.deepspeed, key, MISSING)
        if value is MISSING or value is None or value == AUTO or (whole(value) is not None):
            continue
        number = _digits(value)
        baffling = f' Messages then compare "{number}" with {number}, which look equal.' if isinstance(value, str) and number else ""
        yield Hit(path=key, message=f"{key} is {shown(value)}, which is no integer.{baffling}",
                  changes=(edit(key, number) if number else drop(key),))  # fmt: skip


def _digits(value: Any) -> int | None:
    return int(value) if isinstance(value, str) and value.strip().isdecimal() and len(value) < 12 and int(value) > 0 else None


@rule("DS070", Card(title="no batch number", severity="error", effect="fails", kinds=DS, source="ds-config",
                    why="DeepSpeed derives two of the numbers from a third, but accumulation alone is not enough.",
                    fix="write train_micro_batch_size_per_gpu"))  # fmt: skip
def batch_missing(subject: Subject) -> Iterator[Hit]:
    """Nothing, or accumulation alone."""
    written = [key for key in BATCH if at(subject.deepspeed, key) is not None]
    if TRAIN in written or MICRO in written or (subject.launcher == "hf_trainer" and not written):
        return
    micro = subject.training.micro_batch if subject.training and subject.training.micro_batch else 1
    says = "gradient_accumulation_steps alone is given" if ACCUM in written else "none of the three batch numbers is given"
    severity = "error" if subject.launcher == "deepspeed" else "info"
    if severity == "error":
        yield Hit(path=MICRO, message=f"{says[0].upper()}{says[1:]}; the engine needs train_batch_size or {MICRO}.",
                  changes=(edit(MICRO, micro),))  # fmt: skip


@rule("DS071", Card(title="batch number below one", severity="error", effect="fails", kinds=DS, source="ds-config",
                    why="Each of the numbers must be positive after the integer divisions.",
                    fix="write at least 1, and a train_batch_size of at least the ranks"))  # fmt: skip
def batch_positive(subject: Subject) -> Iterator[Hit]:
    """Zero and negative numbers, and a total smaller than the ranks."""
    batch = triple(View(subject))
    for key, value in batch.given.items():
        if value < 1:
            yield Hit(path=key, message=f"{key} is {value}, which is not positive.", changes=(edit(key, 1),))
    if min([1, *batch.given.values()]) < 1 or batch.ranks is None or batch.train is None or len(batch.given) == 3:
        return
    if batch.micro is not None and batch.micro < 1:
        yield Hit(path=TRAIN, changes=(drop(TRAIN), edit(MICRO, 1)),
                  message=f"train_batch_size {batch.train} over {batch.ranks} ranks leaves a micro-batch of 0.")  # fmt: skip
    elif batch.accum is not None and batch.accum < 1:
        yield Hit(path=TRAIN, changes=(drop(TRAIN),),
                  message=f"train_batch_size {batch.train} is smaller than {batch.micro} × {batch.ranks} ranks, so no micro-step is "
                          f"left.")  # fmt: skip


@rule("DS050", Card(title="sequence_parallel_size alone", severity="warning", effect="changed", kinds=DS, source="ds-config",
                    why="The size divides the ranks of the batch check; a mesh is built only together with data_parallel_size, or "
                        "from an mpu.",
                    fix="write data_parallel_size = ranks / sequence_parallel_size beside it"))  # fmt: skip
def sequence_size_alone(subject: Subject) -> Iterator[Hit]:
    """A size that enables nothing, or that does not divide the ranks."""
    view = View(subject)
    size = whole(at(view.config, "sequence_parallel_size"))
    if size is None or size < 2:
        return
    ranks = subject.ranks
    if ranks and ranks % size:
        yield Hit(path="sequence_parallel_size", changes=(drop("sequence_parallel_size"),),
                  message=f"{ranks} ranks / sequence_parallel_size {size} = {ranks / size:.2f}, so the batch check computes with a "
                          f"fraction.")  # fmt: skip
    elif not has(view.config, "data_parallel_size"):
        add = (edit("data_parallel_size", ranks // size),) if ranks else (drop("sequence_parallel_size"),)
        yield Hit(path="data_parallel_size", changes=add,
                  message=f"sequence_parallel_size {size} without data_parallel_size enables no sequence parallelism by "
                          f"itself.")  # fmt: skip


SAME = (
    (MICRO, "per_device_train_batch_size"), (ACCUM, "gradient_accumulation_steps"), ("gradient_clipping", "max_grad_norm"),
    ("optimizer.params.lr", "learning_rate"), ("optimizer.params.eps", "adam_epsilon"),
    ("optimizer.params.weight_decay", "weight_decay"), ("scheduler.params.warmup_max_lr", "learning_rate"),
    ("scheduler.params.warmup_num_steps", "warmup_steps"),
)  # fmt: skip


@rule("DS072", Card(title="value that contradicts TrainingArguments", severity="error", effect="fails", kinds=DS, source="hf-deepspeed",
                    launchers=LAUNCHED_BY_HF, fix='write "auto", and the Trainer fills the argument in',
                    why="The Trainer compares the file with its arguments and raises ValueError on the first start of "
                        "training."))  # fmt: skip
def hf_mismatch(subject: Subject) -> Iterator[Hit]:
    """Each pair that the Trainer compares, where both sides are known."""
    config, arguments = subject.deepspeed, subject.arguments
    for path, name in SAME:
        given, wanted = at(config, path), arguments.get(name)
        if name == "warmup_steps" and isinstance(wanted, int):
            wanted = max(1, wanted)
        if _differ(given, wanted):
            yield _mismatch(path, given, name, wanted)
    betas, beta = at(config, "optimizer.params.betas"), (arguments.get("adam_beta1"), arguments.get("adam_beta2"))
    if None not in beta and isinstance(betas, list) and betas != list(beta):
        yield _mismatch("optimizer.params.betas", betas, "adam_beta1, adam_beta2", list(beta))
    for kind in ("bf16", "fp16"):
        given, wanted = at(config, f"{kind}.enabled"), arguments.get(kind)
        if isinstance(given, bool) and isinstance(wanted, bool) and given != wanted:
            yield _mismatch(f"{kind}.enabled", given, kind, wanted)
    total = at(config, TRAIN)
    micro, accum = whole(arguments.get("per_device_train_batch_size")), whole(arguments.get("gradient_accumulation_steps", 1))
    if total not in (None, AUTO) and micro and accum and subject.ranks and total != micro * accum * subject.ranks:
        product = micro * accum * subject.ranks
        yield _mismatch(TRAIN, total, f"{micro} × {accum} × {subject.ranks} ranks", product)


def _differ(given: Any, wanted: Any) -> bool:
    return given is not None and wanted is not None and given != AUTO and given != wanted


def _mismatch(path: str, given: Any, name: str, wanted: Any) -> Hit:
    return Hit(path=path, message=f"{path} is {shown(given)}, but {name} is {shown(wanted)}.", changes=(edit(path, AUTO),))


@rule("DS073", Card(title="file that differs from the training that was described", severity="warning", effect="changed", kinds=DS,
                    source="ds-config", needs=("training",), fix="make the two agree",
                    why="The engine trains with what the file says, whatever the plan was made for."))  # fmt: skip
def other_than_asked(subject: Subject) -> Iterator[Hit]:
    """Micro-batch, accumulation, global batch and precision beside those of the request."""
    training, view = subject.training, View(subject)
    if training is None:
        return
    batch = triple(view)
    for key, asked in ((MICRO, training.micro_batch), (ACCUM, training.grad_accum), (TRAIN, training.global_batch)):
        given = batch.given.get(key)
        if given is not None and asked is not None and given != asked and given > 0:
            yield Hit(path=key, message=f"{key} is {given:,}, while {asked:,} was asked for.", changes=(edit(key, asked),))
    if TRAIN not in batch.given and batch.train and training.global_batch and batch.train != training.global_batch:
        yield Hit(path=ACCUM, message=f"{batch.micro} × {batch.accum} × {batch.ranks} = {batch.train:,} sequences make a step, "
                                      f"while {training.global_batch:,} were asked for.")  # fmt: skip
    asked_dtype = DTYPES.get(training.precision, training.precision)
    said = "precision" in training.named and asked_dtype in ("bf16", "fp16", "fp32") and not _autocasts(view)
    if said and view.precision is not None and view.precision != asked_dtype:
        changes = (edit(f"{asked_dtype}.enabled", True),) if asked_dtype != "fp32" and view.precision == "fp32" else ()
        yield Hit(path=f"{view.precision}.enabled" if view.precision != "fp32" else f"{asked_dtype}.enabled", changes=changes,
                  message=f"The file trains in {view.precision}, while {asked_dtype} was asked for.")  # fmt: skip


def _autocasts(view: View) -> bool:
    return bool(block(view.config, "torch_autocast").get("enabled"))
