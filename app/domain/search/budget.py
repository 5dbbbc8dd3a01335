"""What one question may cost, whoever asks it: candidates that probes evaluate, and time by a clock that is not ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

MOST_PROBED = 2_000_000
"""Candidates of all probes of one question, which look only for whether anything fits."""

MOST_OF_A_PROBE = 60_000
"""Candidates of one probe; a larger space is narrowed as that of any search."""


def _for_ever() -> bool:
    return True


@dataclass(slots=True, kw_only=True)
class Budget:
    """What is left for one question.

    Attributes:
        probes: candidates that probes may still evaluate.
        go_on: called between pieces of work, each a fraction of a second; False once the time is over. It may wait for its turn first.
        stopped: what was left undone when something ran out, in words.
        cut: whether that were combinations of what is planned, so that "does not fit" would be no answer.
    """

    probes: int = MOST_PROBED
    go_on: Callable[[], bool] = _for_ever
    stopped: list[str] = field(default_factory=list)
    cut: bool = False

    def may_probe(self) -> bool:
        """Whether another probe may begin."""
        return self.probes > 0 and self.go_on()

    def stop(self, undone: str, *, cut: bool = False) -> None:
        """Say, once, what is left undone."""
        self.cut |= cut
        if undone not in self.stopped:
            self.stopped.append(undone)
