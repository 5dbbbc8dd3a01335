"""One table that turns every strategy into numbers: who shares what, when it is gathered, what moves.

Memory and traffic formulas read these numbers and never ask for a stage. A new strategy is a new row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ZERO_STAGES = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}
"""DeepSpeed's stage numbers by the name of the strategy."""

Scope = Literal["none", "group", "all"]
"""Ranks a tensor is divided over: nobody, the shard group, or all data-parallel ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One row of the table.

    Attributes:
        name, framework: the words of the request.
        label: the words of the answer.
        complexity: order on the ladder; the simpler of two plans within 5 % wins.
        parameters, gradients, states: over which ranks each is divided between steps.
        gathers: parameter gathers per micro-step (forward and backward) before any reuse; 1 where backward keeps the forward's copy.
        keeps_gathered: parameters stay whole from a unit's forward to its backward.
        reduce_op: collective that combines gradients: ``all_reduce`` moves twice what ``reduce_scatter`` does.
        reduces_each_micro_step: whether gradients travel every micro-step or once a step.
        gathers_after_step: parameters are gathered once after the optimizer step.
        by_framework_only: the name alone means another row, so this one is taken where its framework is named or all is left open.
    """

    name: str
    framework: str
    label: str
    complexity: int
    parameters: Scope
    gradients: Scope
    states: Scope
    gathers: int
    keeps_gathered: bool
    reduce_op: Literal["all_reduce", "reduce_scatter"]
    reduces_each_micro_step: bool
    gathers_after_step: bool
    by_framework_only: bool = False


def _row(name: str, framework: str, label: str, complexity: int, **numbers: object) -> Strategy:
    return Strategy(name=name, framework=framework, label=label, complexity=complexity, **numbers)  # type: ignore[arg-type]


STRATEGIES: tuple[Strategy, ...] = (
    _row("ddp", "ddp", "DDP", 0, parameters="none", gradients="none", states="none", gathers=0, keeps_gathered=False,
         reduce_op="all_reduce", reduces_each_micro_step=False, gathers_after_step=False),
    _row("ddp", "deepspeed", "DeepSpeed stage 0", 1, parameters="none", gradients="none", states="none", gathers=0, keeps_gathered=False,
         reduce_op="all_reduce", reduces_each_micro_step=False, gathers_after_step=False),
    _row("zero1", "ddp", "DDP with ZeroRedundancyOptimizer", 2, parameters="none", gradients="none", states="all", gathers=0,
         keeps_gathered=False, reduce_op="all_reduce", reduces_each_micro_step=False, gathers_after_step=True, by_framework_only=True),
    # DeepSpeed's stages 1 and 2 issue an all-reduce, whatever `reduce_scatter` says, and gather parameters after the step.
    _row("zero1", "deepspeed", "ZeRO-1", 3, parameters="none", gradients="none", states="all", gathers=0, keeps_gathered=False,
         reduce_op="all_reduce", reduces_each_micro_step=False, gathers_after_step=True),
    _row("zero2", "deepspeed", "ZeRO-2", 4, parameters="none", gradients="all", states="all", gathers=0, keeps_gathered=False,
         reduce_op="all_reduce", reduces_each_micro_step=True, gathers_after_step=True),
    _row("fsdp_grad_op", "fsdp2", "FSDP2 without resharding", 5, parameters="all", gradients="all", states="all", gathers=1,
         keeps_gathered=True, reduce_op="reduce_scatter", reduces_each_micro_step=True, gathers_after_step=False),
    _row("fsdp_full", "fsdp2", "FSDP2", 6, parameters="all", gradients="all", states="all", gathers=2, keeps_gathered=False,
         reduce_op="reduce_scatter", reduces_each_micro_step=True, gathers_after_step=False),
    _row("zero3", "deepspeed", "ZeRO-3", 7, parameters="all", gradients="all", states="all", gathers=2, keeps_gathered=False,
         reduce_op="reduce_scatter", reduces_each_micro_step=True, gathers_after_step=False),
    _row("hsdp", "fsdp2", "HSDP", 8, parameters="group", gradients="group", states="group", gathers=2, keeps_gathered=False,
         reduce_op="reduce_scatter", reduces_each_micro_step=True, gathers_after_step=False),
)  # fmt: skip


def find_strategies(framework: str | None, strategy: str | None) -> tuple[Strategy, ...]:
    """Rows that a request leaves open; a pinned pair that no row has gives none.

    Example:
        >>> [s.label for s in find_strategies("deepspeed", None)]
        ['DeepSpeed stage 0', 'ZeRO-1', 'ZeRO-2', 'ZeRO-3']
    """
    named = strategy is not None and framework is None
    rows = (s for s in STRATEGIES if framework in (None, s.framework) and strategy in (None, s.name))
    return tuple(s for s in rows if not (named and s.by_framework_only))


def shared_by(scope: Scope, dp_ranks: int, group_ranks: int) -> int:
    """How many ranks hold one copy together.

    Example:
        >>> shared_by("all", 64, 8), shared_by("group", 64, 8), shared_by("none", 64, 8)
        (64, 8, 1)
    """
    return {"none": 1, "group": group_ranks, "all": dp_ranks}[scope]
