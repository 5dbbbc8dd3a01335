"""Rules about the scheduler block."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from app.audit.deepspeed.common import DS, drop, edit
from app.audit.deepspeed.keys import shown
from app.audit.deepspeed.view import AUTO, HF, View
from app.audit.finding import Hit
from app.audit.reading import at, block
from app.audit.registry import Card, rule
from app.audit.subject import Subject

OURS = {
    "LRRangeTest": ("lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate", "lr_range_test_staircase"),
    "OneCycle": (
        "cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "cycle_first_step_size", "cycle_second_step_size", "cycle_first_stair_count",
        "cycle_second_stair_count", "decay_step_size", "cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate",
    ),
    "WarmupLR": ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"),
    "WarmupDecayLR": ("total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"),
    "WarmupCosineLR": ("total_num_steps", "warmup_min_ratio", "warmup_num_steps", "cos_min_ratio", "warmup_type"),
}  # fmt: skip
"""DeepSpeed's schedulers and their parameters; each takes last_batch_iteration too."""
REQUIRED = {"OneCycle": ("cycle_min_lr", "cycle_max_lr"), "WarmupDecayLR": ("total_num_steps",), "WarmupCosineLR": ("total_num_steps",)}
TORCH = (
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR", "LambdaLR",
    "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR",
)  # fmt: skip
TYPE, PARAMS = "scheduler.type", "scheduler.params"


def _type(view: View) -> str:
    named = at(view.config, TYPE)
    return named if isinstance(named, str) else ""


@rule("DS041", Card(title="torch's scheduler under ZeRO", severity="error", effect="fails", kinds=DS, source="ds-engine",
                    why="The name resolves, but torch's scheduler refuses ZeRO's wrapper: it is not an Optimizer.",
                    fix="a DeepSpeed scheduler, or a callable from the script"))  # fmt: skip
def torch_scheduler(subject: Subject) -> Iterator[Hit]:
    """A class of torch.optim.lr_scheduler beside ZeRO."""
    view = View(subject)
    if view.stage > 0 and _type(view) in TORCH:
        yield Hit(path=TYPE, message=f"{_type(view)} is torch's, and cannot drive ZeRO's optimizer.", changes=(drop("scheduler"),))


@rule("DS042", Card(title="no step of warm-up", severity="error", effect="fails", kinds=DS, source="ds-schedules", since="0.19.6",
                    why="Warm-up schedulers raise ValueError unless warmup_num_steps is a positive integer.", fix="at least "
                                                                                                                  "1"))  # fmt: skip
def warmup_steps(subject: Subject) -> Iterator[Hit]:
    """warmup_num_steps of zero, negative, or no integer."""
    view, path = View(subject), f"{PARAMS}.warmup_num_steps"
    given = at(view.config, path, 1)
    if not _type(view).startswith("Warmup") or given == AUTO or (isinstance(given, int) and given > 0):
        return
    meant = int(given) if isinstance(given, float) and 1 <= given < 1e15 else 1
    yield Hit(path=path, message=f"warmup_num_steps is {shown(given)}, which is no positive integer.", changes=(edit(path, meant),))


@rule("DS074", Card(title="scheduler that is not known", severity="error", effect="fails", kinds=DS, source="ds-engine",
                    why="The engine takes its own five schedulers and names of torch.optim.lr_scheduler.",
                    fix="WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle or LRRangeTest"))  # fmt: skip
def unknown_scheduler(subject: Subject) -> Iterator[Hit]:
    """A name that is neither DeepSpeed's nor torch's."""
    name = _type(View(subject))
    if not name or name in OURS or name in TORCH:
        return
    near = next(iter(difflib.get_close_matches(name, list(OURS), n=1, cutoff=0.6)), None)
    params = block(subject.deepspeed, PARAMS)
    usable = near if near and set(params) <= {*OURS[near], "last_batch_iteration"} and set(REQUIRED.get(near, ())) <= set(params) else None
    yield Hit(path=TYPE, message=f"DeepSpeed does not recognize the scheduler {shown(name)}.", fix=f"write {near}" if near else "",
              changes=(edit(TYPE, usable),) if usable else (drop("scheduler"),))  # fmt: skip


@rule("DS092", Card(title="parameters that the scheduler does not take", severity="error", effect="fails", kinds=DS, source="ds-schedules",
                    why="The parameters are passed on by name, and the constructor raises TypeError for one too many or too few.",
                    fix="the parameters of that scheduler"))  # fmt: skip
def scheduler_parameters(subject: Subject) -> Iterator[Hit]:
    """Unknown and missing parameters of DeepSpeed's schedulers."""
    view = View(subject)
    name, params = _type(view), block(subject.deepspeed, PARAMS)
    if name not in OURS:
        return
    for key in params:
        if isinstance(key, str) and key not in OURS[name] and key != "last_batch_iteration":
            path = f"{PARAMS}.{key}"
            yield Hit(path=path, message=f"{name} has no parameter {shown(key)}.", changes=(drop(path),))
    for key in REQUIRED.get(name, ()):
        if key not in params:
            hf = subject.launcher in HF and key == "total_num_steps"
            yield Hit(path=f"{PARAMS}.{key}", message=f"{name} needs {key}.",
                      changes=(edit(f"{PARAMS}.{key}", AUTO),) if hf else (drop("scheduler"),))  # fmt: skip
