"""What is said about links: a plan that waits for them longer than it computes beside them."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.plan import Candidate, CommunicationTerm, PlanWarning
from app.domain.search.evaluate import Evaluation
from app.domain.search.warn.base import warning

_WORTH_SAYING, _MOST_OF_IT = 0.3, 0.5
"""Exposed communication as a share of the step: said from the first on, and a warning from the second."""


def network_warnings(evaluation: Evaluation, candidate: Candidate) -> Iterator[PlanWarning]:
    """Steps of which much is waiting for collectives, with the one that is waited for longest and what hides it."""
    step, waits = candidate.time.step_s, candidate.time.exposed_communication_s
    if waits < _WORTH_SAYING * step:
        return
    longest = max(candidate.communication, key=lambda term: term.exposed_s)
    link = "the network between nodes" if longest.spans_nodes else "the links inside the node"
    yield warning(
        "communication_bound",
        f"{100 * waits / step:.0f} % of a step is waiting for {link}: {_seconds(waits)} of {_seconds(step)}, most of it "
        f"{longest.name} over {longest.group_size} GPUs ({_seconds(longest.exposed_s)}). Without the wait it would be "
        f"{step / max(step - waits, 1e-9):.1f} × as fast.",
        "cluster.pools.0.inter_node_gbit_per_s" if longest.spans_nodes else "cluster.pools.0.intra_node",
        _fix(evaluation, candidate, longest),
        "warning" if waits >= _MOST_OF_IT * step else "info",
    )


def _fix(evaluation: Evaluation, candidate: Candidate, longest: CommunicationTerm) -> str:
    settings, recipe = candidate.settings, evaluation.setup.recipe
    ways = []
    if "all-gather" in longest.name and settings.strategy != "zero1":
        ways.append("Weights are sent in every micro-step whatever its tokens: raise micro_batch, or shard less")
    elif settings.strategy in ("ddp", "zero1"):
        ways.append("Gradients are sent once a step: raise grad_accum")
    else:
        ways.append("Gradients are sent in every micro-step: raise micro_batch")
    if longest.spans_nodes:
        ways.append("one node alone does not wait for the network" + ("" if recipe.adapter is None else ", and adapters rarely need more"))
    return "; ".join(ways) + "."


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"
