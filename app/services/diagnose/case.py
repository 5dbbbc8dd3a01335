"""Everything that one diagnosis knows."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.plan import Candidate
from app.ingest.logs import LogFacts
from app.services.diagnose.asked import MeasuredIn, PartialRequest
from app.services.diagnose.ran import Judge, Ran
from app.services.diagnose.result import Expected

_LARGEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that is known: the log, the request, and the run the two describe, None where no model is named."""

    facts: LogFacts
    measured: MeasuredIn
    asked: PartialRequest
    ran: Ran | None
    judge: Judge

    @property
    def ranks(self) -> int | None:
        """GPUs of the run, where the request says."""
        if self.asked.cluster is None:
            return None
        return sum((pool.gpus_per_node or 8) * pool.nodes for pool in self.asked.cluster.pools)

    @property
    def complete(self) -> bool:
        """Whether model and devices are known, so that the planner can judge the run."""
        return self.ran is not None and self.ran.complete


def expected_of(ran: Ran) -> Expected:
    """What the planner says of the run, in short."""
    found: Candidate = ran.candidate
    terms = sorted(((term.name, int(term.value)) for term in found.gpu.terms), key=lambda pair: -pair[1])
    return Expected(
        verdict=found.verdict, settings=f"{found.settings.framework} {found.settings.strategy}", needed_bytes=found.gpu.needed_bytes,
        capacity_bytes=found.gpu.capacity_bytes, peak_moment=found.gpu.peak_moment, largest_terms=tuple(terms[:_LARGEST]),
        host_bytes=found.host.peak_bytes, host_capacity_bytes=found.host.capacity_bytes, step_s=found.time.step_s,
        tokens_per_s=found.time.tokens_per_s,
    )  # fmt: skip
