"""A slow run: the step that is expected, the part of it that binds, and what makes it faster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from app.domain.plan import Candidate, CommunicationTerm
from app.domain.units import format_number
from app.ingest.logs import Pace
from app.services.diagnose.ran import Judge, Ran
from app.services.diagnose.result import Remedy, Slowness
from app.services.diagnose.variants import OTHER_TRAINING, Tried, as_remedy
from app.services.resolve import resolve

_LEAST_GAIN_FRAC = 0.005
_AS_EXPECTED, _MUCH = 1.4, 1.5
_FEW_SHOWN, _WORTH_SAYING = 8, 0.1


@dataclass(frozen=True, slots=True)
class Part:
    """Something the step waits for, with the words for its link, the moment it is in, and what it takes where nothing hides it."""

    name: str
    seconds: float
    link: str
    moment: Any
    whole_s: float = 0.0


def reported_of(pace: Pace, step_s: float | None, candidate: Candidate) -> float | None:
    """Seconds of one step: measured, printed, or from a rate of tokens or samples."""
    if step_s is not None:
        return step_s
    if pace.step_s is not None:
        return pace.step_s
    s = candidate.settings
    if pace.tokens_per_s:
        tokens = s.global_batch * s.seq_len
        return tokens / (pace.tokens_per_s * (s.world_size if pace.per_gpu else 1))
    return s.global_batch / pace.samples_per_s if pace.samples_per_s else None


def parts_of(ran: Ran) -> list[Part]:
    """What a step goes into, the largest first."""
    time = ran.candidate.time
    found = [Part("computing", time.compute_s, f"the {ran.resolved.gpu_name}", "forward")]
    found += _collectives(ran)
    if time.optimizer_s > 0:
        on_host = ran.candidate.settings.offload_optimizer != "none"
        found.append(Part("the optimizer step", time.optimizer_s, "the host's memory" if on_host else "the GPU's memory", "step"))
    if time.offload_s > 0:
        found.append(Part("offload transfers", time.offload_s, "the link between host and GPU", "step"))
    return sorted(found, key=lambda part: -part.seconds)


def _collectives(ran: Ran) -> list[Part]:
    """Collectives of one kind over the same ranks together."""
    grouped: dict[tuple[str, str, str], list[CommunicationTerm]] = {}
    for term in ran.candidate.communication:
        grouped.setdefault((_term(term), _link(term, ran), _moment(term)), []).append(term)
    return [
        Part(name, sum(t.exposed_s for t in terms), link, moment, sum(t.seconds for t in terms))
        for (name, link, moment), terms in grouped.items()
    ]


def _term(term: CommunicationTerm) -> str:
    return f"the {term.name} over {term.group_size} ranks"


def _moment(term: CommunicationTerm) -> str:
    return "forward" if "gather" in term.name else "reduction"


def _link(term: CommunicationTerm, ran: Ran) -> str:
    node = ran.resolved.question.setup.pool.node
    if term.spans_nodes:
        return f"the network between nodes, at {format_number(node.inter_node.bytes_per_s * 8 / 1e9)} Gbit/s a node"
    return f"{node.intra_node.name} inside the node, at {format_number(node.intra_node.bytes_per_s / 1e9)} GB/s"


def binding(parts: list[Part], *, late: bool) -> Part:
    """The largest part that is not computing, unless computing is nearly all.

    Args:
        late: the step took much longer than expected; then what should have been hidden behind computing is the first suspect.
    """
    others = [part for part in parts if part.name != "computing"]
    if late and (moves := [part for part in others if part.whole_s > 0 or part.name == "offload transfers"]):
        return max(moves, key=lambda part: max(part.seconds, part.whole_s))
    if not others or sum(part.seconds for part in others) < 0.1 * sum(part.seconds for part in parts):
        return parts[0]
    return others[0]


def is_late(ran: Ran, reported: float | None) -> bool:
    """Whether the step took much longer than the plan expects."""
    return reported is not None and reported > _MUCH * ran.candidate.time.step_s


def on_real_network(ran: Ran, judge: Judge, reported: float) -> tuple[Ran, str]:
    """The run on the network that the reported time speaks of, where nobody said how fast it is and it alone can explain the time."""
    spanning = [t for t in ran.candidate.communication if t.spans_nodes]
    pools = ran.request.cluster.pools
    if not spanning or not is_late(ran, reported) or len(pools) > 1:
        return ran, ""
    assumed = ran.resolved.question.setup.pool.node.inter_node.bytes_per_s * 8 / 1e9
    low, high, slower = _SLOWEST_GBIT, assumed, ran
    for _ in range(_HALVINGS):
        rate = (low * high) ** 0.5
        pool = pools[0].model_copy(update={"inter_node_gbit_per_s": rate})
        request = ran.request.model_copy(update={"cluster": ran.request.cluster.model_copy(update={"pools": [pool]})})
        candidate = judge.tried(request)
        if candidate is None:
            return ran, ""
        slower = replace(ran, request=request, candidate=candidate, resolved=resolve(request))
        low, high = (rate, high) if candidate.time.step_s > reported else (low, rate)
    if abs(slower.candidate.time.step_s / reported - 1) > _CLOSE:
        return ran, ""
    expected = format_number(ran.candidate.time.step_s)
    note = (
        f"With the network such machines usually have ({format_number(assumed)} Gbit/s a node) a step takes {expected} s. The time "
        f"reported speaks of {format_number(rate)} Gbit/s, and what follows is computed with that. {_LOOK}"
    )
    return slower, note


_LOOK = "Look for NET/Socket instead of NET/IB in NCCL_DEBUG=INFO, and for the interface in NCCL_SOCKET_IFNAME."
_SLOWEST_GBIT, _HALVINGS, _CLOSE = 0.1, 8, 0.15


def slowness_of(parts: list[Part], binds: Part, expected_s: float, reported: float | None) -> Slowness:
    """As it is shown."""
    shown = tuple((f"{part.name}, on {part.link}", round(part.seconds, 4)) for part in parts[:_FEW_SHOWN])
    return Slowness(expected_s=expected_s, reported_s=reported, binds=f"{binds.name}, on {binds.link}", binds_s=binds.seconds, parts=shown)


def cause_of(binds: Part, expected: float, reported: float | None, *, explained: bool) -> str:
    """One sentence: time expected against reported, and what binds.

    Args:
        explained: the network was set so that the plan takes as long as was reported.
    """
    seconds = binds.seconds or binds.whole_s
    share = f"{format_number(seconds)} s of it {'is' if binds.name == 'computing' else 'waits for'} {binds.name}, on {binds.link}"
    if reported is not None and reported > _MUCH * expected and not explained and binds.name != "computing":
        share = f"what binds most is {binds.name}, on {binds.link}, with {format_number(seconds)} s of the expected"
    if reported is None:
        return f"A step of this setup takes {format_number(expected)} s: {share}."
    ratio = reported / expected
    if ratio * _MUCH < 1:
        return f"The step took {format_number(reported)} s, less than the {format_number(expected)} s that are expected: {share}."
    if ratio > _MUCH:
        there = f"where {format_number(expected)} s are expected, {format_number(ratio)} times as long"
        return f"The step took {format_number(reported)} s {there}; {share}."
    return f"The step took {format_number(reported)} s and {format_number(expected)} s are expected: {share}."


def notes_of(binds: Part, ran: Ran, reported: float | None) -> list[str]:
    """What the reported time says of the link, and where to look when the plan cannot explain it."""
    if reported is None:
        return []
    expected, s = ran.candidate.time.step_s, ran.candidate.settings
    notes = []
    spanning = [t for t in ran.candidate.communication if t.spans_nodes]
    if spanning and reported > _AS_EXPECTED * expected:
        node = ran.resolved.question.setup.pool.node
        exposed = sum(t.exposed_s for t in spanning)
        rest = max(1e-9, reported - (expected - exposed))
        rate = node.inter_node.bytes_per_s * exposed / rest if exposed > 0 else 0.0
        if rate > 0:
            notes.append(f"If the network is to blame it gave {format_number(rate * 8 / 1e9)} Gbit/s a node. {_LOOK}")
    elif reported > _AS_EXPECTED * expected:
        notes.append("Nothing in this setup explains the rest: look at the data loader, at logging and at evaluation inside the step.")
    if binds.name != "computing" and s.nodes > 1:
        notes.append(
            f"One micro-step moves {format_number(sum(t.bytes_per_step for t in spanning) / 1e9 / s.grad_accum)} GB a GPU between nodes."
        )
    return notes


def judged(found: list[Tried], ran: Ran) -> tuple[list[Remedy], list[str]]:
    """What is faster by at least a few percent, the largest gain first; and what is not."""
    step, remedies, useless = ran.candidate.time.step_s, [], []
    for one in found:
        after = one.candidate
        label = one.variant.label[:1].upper() + one.variant.label[1:]
        if after.verdict == "does_not_fit":
            if one.variant.kind != OTHER_TRAINING:
                faster = (
                    f"; {format_number(step / max(1e-9, step + one.step_s_change))} times as fast if it did"
                    if one.step_s_change < -_WORTH_SAYING * step
                    else ""
                )
                useless.append(f"{label}: it does not fit, the GPU would need {format_number(after.gpu.needed_bytes / 2**30)} GiB{faster}.")
        elif one.step_s_change > -_LEAST_GAIN_FRAC * step:
            useless.append(
                f"{label}: as many tokens would take {format_number(step + one.step_s_change)} s instead of {format_number(step)} s."
            )
        else:
            factor = step / max(1e-9, step + one.step_s_change)
            remedy = as_remedy(one, ran.candidate.gpu.needed_bytes - after.gpu.needed_bytes, enough=True)
            why = f"{format_number(factor)} times as fast. {one.variant.why}".strip()
            remedies.append((one.variant.kind, one.step_s_change, remedy, why))
    # The same training first: what changes the batch has to be tuned again.
    ordered = sorted(remedies, key=lambda entry: entry[:2])
    return [_with_why(remedy, why) for _, _, remedy, why in ordered], useless


def _with_why(remedy: Remedy, why: str) -> Remedy:
    return Remedy(label=remedy.label, settings=remedy.settings, frees_bytes=remedy.frees_bytes, step_s_change=remedy.step_s_change,
                  enough=remedy.enough, why=why)  # fmt: skip
