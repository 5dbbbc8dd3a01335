"""Rules about reading the file: unknown, removed, misplaced, deprecated and wrongly typed keys."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from app.audit.deepspeed.common import DS, drop, edit
from app.audit.deepspeed.keys import Known, known_keys, loose_blocks, names_in, parse, places_of, shown, strict_blocks
from app.audit.deepspeed.view import AUTO, BATCH, HF, ZERO, View
from app.audit.finding import Change, Hit
from app.audit.reading import at, has
from app.audit.registry import Card, rule
from app.audit.subject import Subject

REMOVED_INSTEAD = {
    "amp": "fp16, bf16 or torch_autocast", "curriculum_learning": "data_efficiency.data_sampling.curriculum_learning",
    "elasticity": "the batch numbers themselves", "zero_optimization.mics_shard_size": "zero_hpz_partition_size",
}  # fmt: skip
LATER = frozenset({"aio", "activation_checkpointing", "flops_profiler", "checkpoint", "timers", "expert_parallel"})
"""Blocks whose values are taken as they are: a wrong one fails where it is used, if it is."""
RESOLVED_TOP = frozenset({*BATCH, "gradient_clipping"})


def join(block: str, name: str) -> str:
    """Dotted path of a key in a block; the empty block is the top."""
    return f"{block}.{name}" if block else name


def blocks_of(config: Mapping[str, Any], paths: frozenset[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Those blocks of the file that are mappings."""
    for path in sorted(paths):
        found = at(config, path) if path else config
        if isinstance(found, Mapping):
            yield path, found


def nearest(name: str, block: str) -> str:
    """The known key of the block that is spelled most like a name; empty where none is."""
    found = difflib.get_close_matches(name.lower(), list(names_in(block)), n=1, cutoff=0.75)
    return found[0] if found else ""


def _unknown(view: View, paths: frozenset[str]) -> Iterator[tuple[str, str, Any]]:
    for path, found in blocks_of(view.config, paths):
        known = names_in(path)
        for name, value in found.items():
            if isinstance(name, str) and name not in known:
                yield path, name, value


def _right_place(path: str, name: str) -> str:
    """Where a key belongs that stands in the wrong block: the outermost of its places."""
    places = [place for place in places_of(name) if place.rpartition(".")[0] != path]
    if name in ("enabled", "params", "type", "dtype") or not places:
        return ""
    return places[0]


def _unknown_hit(view: View, path: str, name: str, value: Any, refused: bool) -> Hit:
    where, full = path or "the top level", join(path, name)
    if refused and value == AUTO:
        return Hit(path=full, message=f'{name} is no key of {where}; it is dropped because it says '
                                      f'"auto".', severity="warning", effect="ignored",
                   changes=(drop(full),))  # fmt: skip
    right, alike = _right_place(path, name), nearest(name, path)
    done = "is refused" if refused else "is ignored without a word"
    if alike and not has(view.config, join(path, alike)) and _fits(view, join(path, alike), value):
        return Hit(path=full, message=f"{name} is no key of {where}, so it {done}; the nearest is {alike}.", fix=f"write {alike}",
                   changes=(drop(full), edit(join(path, alike), value)))  # fmt: skip
    if right:
        inside = right.rpartition(".")[0] or "the top level"
        moves = not view.written(right) and _fits(view, right, value)
        return Hit(path=full, message=f"{name} stands in {where}, where it {done}; it belongs inside {inside}.",
                   fix=f"move it into {inside}", changes=(drop(full), *([edit(right, value)] if moves else [])))  # fmt: skip
    return Hit(path=full, message=f"{name} is no key of {where}, so it {done}.", changes=(drop(full),))


def _fits(view: View, path: str, value: Any) -> bool:
    """Whether a value can be written at a path without a new complaint."""
    known = known_keys().get(path)
    parent = path.rpartition(".")[0]
    inside = not parent or isinstance(at(view.config, parent, {}), Mapping)
    return known is not None and known.known_to(view.release) and inside and (value == AUTO or not parse(known, value, view.release).wrong)


@rule("DS005", Card(title="unknown key in a block that is checked", severity="error", effect="fails", kinds=DS, source="ds-config",
                    why="The parser forbids keys it does not know in this block and stops with a ValidationError.",
                    fix="remove the key or correct its spelling"))  # fmt: skip
def unknown_in_strict_block(subject: Subject) -> Iterator[Hit]:
    """Keys that pydantic refuses."""
    view = View(subject)
    for path, name, value in _unknown(view, strict_blocks()):
        if join(path, name) not in ("zero_optimization.offload_optimizer.buffer_size", "tensor_parallel.tp_size"):
            yield _unknown_hit(view, path, name, value, True)
    path = "zero_optimization.offload_optimizer.buffer_size"
    if has(view.config, path):
        yield Hit(path=path, changes=(drop(path),), fix="remove it; sub_group_size sets how large a tile is, buffer_count how many "
                                                        "there are",
                  message="offload_optimizer has no buffer_size, so it is refused; only offload_param has one.")  # fmt: skip


@rule("DS006", Card(title="unknown key that is ignored", severity="warning", effect="ignored", kinds=DS, source="ds-config",
                    why="Here the parser picks the keys it knows and never looks at the others.",
                    fix="remove the key or correct its spelling"))  # fmt: skip
def unknown_in_loose_block(subject: Subject) -> Iterator[Hit]:
    """Keys that are dropped without a word."""
    view = View(subject)
    for path, name, value in _unknown(view, loose_blocks()):
        if not name.startswith(("_", "#", "//")):
            yield _unknown_hit(view, path, name, value, False)


@rule("DS007", Card(title="removed feature", severity="error", effect="fails", kinds=DS, source="ds-config",
                    why="The release raises DeepSpeedConfigError for the key, even where the block says disabled or holds the old default.",
                    fix="delete the key"))  # fmt: skip
def removed_key(subject: Subject) -> Iterator[Hit]:
    """Keys that newer releases refuse by name."""
    view = View(subject)
    for known in known_keys().values():
        if known.until and has(view.config, known.path) and not known.known_to(view.release):
            instead = REMOVED_INSTEAD.get(known.path)
            yield Hit(path=known.path, changes=(drop(known.path),), fix=f"delete it; {instead} takes its place" if instead else "",
                      message=f"{known.path} was removed in DeepSpeed {known.until}, and {view.release} refuses files that have "
                              f"it.")  # fmt: skip


@rule("DS008", Card(title="key newer than the release", severity="error", effect="fails", kinds=DS, source="ds-config",
                    why="An older parser does not know the key.", fix="delete the key, or install the release that has it"))  # fmt: skip
def newer_key(subject: Subject) -> Iterator[Hit]:
    """Keys that the named release has not yet: refused in a checked block, ignored elsewhere."""
    view = View(subject)
    for known in known_keys().values():
        if not known.since or not view.written(known.path) or known.known_to(view.release):
            continue
        refused = known.block in strict_blocks()
        yield Hit(path=view.name_of(known.path), changes=(drop(view.name_of(known.path)),), severity=None if refused else "warning",
                  effect=None if refused else "ignored",
                  message=f"{known.path} came with DeepSpeed {known.since}; {view.release} {'refuses' if refused else 'ignores'} "
                          f"it.")  # fmt: skip


def _typed(view: View) -> Iterator[tuple[Known, str, Any]]:
    """Every known key of a checked block that is in the file, with where and what."""
    for path, found in blocks_of(view.config, strict_blocks() | loose_blocks()):
        for name, value in found.items():
            known = names_in(path).get(name) if isinstance(name, str) else None
            if known is not None and value != AUTO and known.path not in BATCH and known.known_to(view.release):
                yield known, join(path, name), value


@rule("DS065", Card(title="value of the wrong type or out of bounds", severity="error", effect="fails", kinds=DS, source="ds-config",
                    why="The parser converts whole numbers such as 5e8, but no text like \"5e8\" and no fractions, and checks the bounds.",
                    fix="write a plain number, true or false, or a block"))  # fmt: skip
def wrong_type(subject: Subject) -> Iterator[Hit]:
    """Quoted numbers, fractions, texts for truth values, values out of bounds."""
    view = View(subject)
    for known, path, value in _typed(view):
        parsed = parse(known, value, view.release)
        own = path in ("zero_optimization",) or known.path == "fp16.loss_scale"
        if not parsed.wrong or parsed.choice or own or (known.block not in strict_blocks() and _lenient(known, value)):
            continue
        better = _repaired(known, value, view.release)
        later = known.block in LATER
        yield Hit(path=path, severity="warning" if later else None, message=f"{path}: {parsed.wrong}.",
                  fix=f"write {shown(better)}" if better is not None else "",
                  changes=(edit(path, better),) if better is not None else (drop(path),))  # fmt: skip


def _lenient(known: Known, value: Any) -> bool:
    """Outside the checked blocks a flag takes any value, and null is the default."""
    return value is None or "bool" in known.types


def _repaired(known: Known, value: Any, release: str) -> Any:
    """The number a text or a fraction stands for; None where that is not allowed either."""
    try:
        number = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None
        better = None if number is None else int(number) if "int" in known.types else number
    except (ValueError, OverflowError):
        return None
    return None if better is None or parse(known, better, release).wrong else better


@rule("DS066", Card(title="value that is none of the allowed", severity="error", effect="fails", kinds=DS, source="ds-config",
                    why="The key takes one of a few values, and the parser stops at any other.", fix="write one of the allowed "
                                                                                                     "values"))  # fmt: skip
def wrong_choice(subject: Subject) -> Iterator[Hit]:
    """Devices, stages and dtypes that do not exist."""
    view = View(subject)
    for known, path, value in _typed(view):
        parsed = parse(known, value, view.release)
        if parsed.choice:
            meant = _meant(known, value)
            yield Hit(path=path, message=f"{path}: {parsed.wrong}.", fix=f"write {meant}" if meant else "",
                      changes=(edit(path, meant),) if meant else (drop(path),))  # fmt: skip


def _meant(known: Known, value: Any) -> Any:
    """The allowed value that is spelled most like the one given; a GPU as offload device is no offload."""
    texts = [choice for choice in known.choices if isinstance(choice, str)]
    if not isinstance(value, str):
        return None
    if value.lower() in ("gpu", "cuda") and "none" in texts:
        return "none"
    return next(iter(difflib.get_close_matches(value.lower(), texts, n=1, cutoff=0.6)), None)


@rule("DS067", Card(title="deprecated key", severity="warning", effect="changed", kinds=DS, source="ds-zero-config",
                    why="The parser warns and converts the key into its successor; with both in the file it stops with an AssertionError.",
                    fix="write the successor"))  # fmt: skip
def deprecated_key(subject: Subject) -> Iterator[Hit]:
    """Old names, alone or beside the new one."""
    view = View(subject)
    for known in known_keys().values():
        if not known.replaced_by or not has(view.config, known.path) or known.block != ZERO:
            continue
        new = _successor(known)
        both = bool(new) and view.written(new)
        value, inert = at(view.config, known.path), not new
        if inert:
            yield Hit(path=known.path, message=f"{known.name} is deprecated and changes nothing.", effect="ignored",
                      fix="write pin_memory in the offload block", changes=(drop(known.path),))  # fmt: skip
            continue
        block_ = new.endswith(("offload_optimizer", "offload_param"))
        on = parse(known, value, view.release).value
        converted: tuple[Change, ...] = () if both or not on else (edit(new, {"device": "cpu"} if block_ else True),)
        said = f"{known.name} is deprecated; it is read as {new.removeprefix('zero_optimization.')}{'.device cpu' if block_ else ''}."
        yield Hit(path=known.path, changes=(drop(known.path), *converted), severity="error" if both else None,
                  effect="fails" if both else None, fix=f"write {new.removeprefix('zero_optimization.')} alone",
                  message=f"{known.name} and its successor {new} are both given, which is refused." if both else said)  # fmt: skip
    if has(view.config, "bfloat16"):
        both = has(view.config, "bf16")
        yield Hit(path="bfloat16", message=f"bfloat16 is the old name of bf16{', which is also given and wins' if both else ''}.",
                  severity="warning" if both else "info", fix="write bf16",
                  changes=(drop("bfloat16"),) if both else (drop("bfloat16"), edit("bf16", at(view.config, "bfloat16"))))  # fmt: skip


def _successor(known: Known) -> str:
    found = names_in(ZERO).get(known.replaced_by)
    return found.path if found else ""


@rule("DS068", Card(title="a key under both of its names", severity="error", effect="fails", kinds=DS, source="ds-zero-config",
                    why="The field's own name and its stage3_ alias are one field, and the parser refuses the second as an extra input.",
                    fix="keep one of them"))  # fmt: skip
def both_names(subject: Subject) -> Iterator[Hit]:
    """A stage3_ key beside the same without the prefix."""
    view = View(subject)
    for known in known_keys().values():
        other = join(known.block, known.also)
        if known.also and has(view.config, known.path) and has(view.config, other):
            yield Hit(path=other, message=f"{known.name} and {known.also} name the same field, and both are given.", changes=(drop(other),))


@rule("DS069", Card(title="zero_optimization is no block", severity="error", effect="fails", kinds=DS, source="ds-zero-config",
                    why="true and false are an old form that means stage 1 and 0; anything else but a block stops the parser.",
                    fix="write a block with a stage"))  # fmt: skip
def short_form(subject: Subject) -> Iterator[Hit]:
    """The old truth value, or something that is no block at all."""
    given = at(subject.deepspeed, ZERO, {})
    if isinstance(given, Mapping):
        return
    if isinstance(given, bool):
        yield Hit(path=ZERO, severity="warning", effect="changed", changes=(edit(ZERO, {"stage": int(given)}),),
                  message=f"zero_optimization {shown(given)} is a deprecated form of stage {int(given)}.")  # fmt: skip
    else:
        yield Hit(path=ZERO, message=f"zero_optimization is {shown(given)}, which is no block.", changes=(drop(ZERO),))


AUTO_OK = ("optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps", "optimizer.params.weight_decay",
           "scheduler.params.warmup_min_lr", "scheduler.params.warmup_max_lr", "scheduler.params.warmup_num_steps",
           "scheduler.params.total_num_steps")  # fmt: skip
NOT_BY_ACCELERATE = ("optimizer.params.betas", "optimizer.params.eps")


def _autos(config: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in config.items():
        path = join(before, str(name))
        if value == AUTO and isinstance(value, str):
            yield path
        elif isinstance(value, Mapping) and before.count(".") < 8:
            yield from _autos(value, path)


@rule("DS003", Card(title="auto that nobody resolves", severity="error", effect="fails", kinds=DS, source="ds-config",
                    why="Outside its checked blocks DeepSpeed takes the text \"auto\" for the value itself.",
                    fix="write the number"))  # fmt: skip
def auto_at_top(subject: Subject) -> Iterator[Hit]:
    """The text auto where the parser computes with it."""
    values = {"gradient_accumulation_steps": 1, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0}
    hf = subject.launcher in HF
    for path in _autos(subject.deepspeed):
        top, where = path.partition(".")[0], path.partition(".")[2]
        if top not in ("optimizer", "scheduler") and (where or top not in (*RESOLVED_TOP, "communication_data_type")):
            continue
        filled = path in RESOLVED_TOP or path in AUTO_OK
        if hf and filled and not (subject.launcher == "accelerate" and path in NOT_BY_ACCELERATE):
            continue
        late = path == "gradient_clipping"
        says = "fails at the first step, where a number is compared with it" if late else "is not replaced by anyone, and fails"
        yield Hit(path=path, message=f'{path} is "auto", which {says}.',
                  changes=(edit(path, values[path]),) if path in values else (drop(path),))  # fmt: skip


@rule("DS004", Card(title="auto that becomes DeepSpeed's default", severity="warning", effect="changed", kinds=DS, source="ds-config",
                    why="Inside a checked block DeepSpeed drops a key whose value is \"auto\", so its own default holds.",
                    fix="write the value"))  # fmt: skip
def auto_in_block(subject: Subject) -> Iterator[Hit]:
    """The text auto in a block without a launcher that replaces it."""
    view, hf = View(subject), subject.launcher in HF
    for path in _autos(subject.deepspeed):
        block_, _, name = path.rpartition(".")
        known = names_in(block_).get(name)
        if block_ not in strict_blocks() or known is None or "zenflow" in block_:
            continue
        if hf and (block_ in ("fp16", "bf16") or "bucket_size" in path or "persistence_threshold" in path):
            continue
        default = known.default(view.release)
        lost = "; training then runs in fp32" if known.name == "enabled" and block_ in ("fp16", "bf16", "bfloat16") else ""
        yield Hit(path=path, message=f'{path} is "auto", which becomes {shown(default)}{lost}.',
                  changes=(edit(path, default),) if default is not None else (drop(path),))  # fmt: skip
