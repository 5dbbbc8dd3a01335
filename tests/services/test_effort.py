"""Turns for large questions, and none for small ones."""

from __future__ import annotations

import threading
import time

import pytest

from app.domain.errors import UnavailableError
from app.services import plan as plan_module
from app.services.effort import SMALL_AT_ONCE, SMALL_S, Effort, Turns, cpus
from app.services.plan import planned
from app.services.request import PlanRequest
from app.web.schemas import EXAMPLE_REQUEST


class Used:
    """CPU seconds of each thread, as a test has them."""

    def __init__(self) -> None:
        self._seconds = threading.local()

    def __call__(self) -> float:
        return float(getattr(self._seconds, "used", 0.0))

    def grow(self) -> None:
        """Let this thread's question be a large one."""
        self._seconds.used = self() + SMALL_S + 1


def test_a_small_question_waits_for_nobody() -> None:
    """All turns of large ones are taken, and more wait for them than there are small turns: it is answered."""
    used = Used()
    effort = Effort(at_once=1, timeout_s=5, used_s=used)
    done = threading.Event()

    def large() -> None:
        with effort.budget() as budget:
            used.grow()
            budget.go_on()
            done.wait(5)

    threads = [threading.Thread(target=large) for _ in range(SMALL_AT_ONCE + 2)]
    for thread in threads:
        thread.start()
    with effort.budget() as small:
        assert small.go_on()
    done.set()
    for thread in threads:
        thread.join()


def test_a_large_question_waits_for_its_turn_and_no_longer_than_it_may() -> None:
    """One goes at a time; whoever waits in vain is told what would make the question small; a turn comes back."""
    used = Used()
    effort = Effort(at_once=1, timeout_s=0.05, used_s=used)
    with effort.budget() as first, effort.budget() as second:
        used.grow()
        assert first.go_on()
        assert first.go_on()
        with pytest.raises(UnavailableError, match="pin a strategy"):
            second.go_on()
    with effort.budget() as third:
        used.grow()
        assert third.go_on()


def test_waiting_takes_no_time_from_the_search() -> None:
    """Half of its time was used, and more than half of it waited: it goes on."""
    used = Used()
    effort = Effort(at_once=1, timeout_s=1.0, used_s=used)
    taken = threading.Event()

    def other() -> None:
        with effort.budget() as budget:
            used.grow()
            budget.go_on()
            taken.set()
            time.sleep(0.8)

    thread = threading.Thread(target=other)
    with effort.budget() as budget:
        time.sleep(0.5)
        thread.start()
        taken.wait(5)
        used.grow()
        assert budget.go_on()
        time.sleep(0.6)
        assert not budget.go_on()
    thread.join()


def test_time_that_is_over_is_said_in_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan all the same."""
    monkeypatch.setattr(plan_module, "EFFORT", Effort(at_once=1, timeout_s=1e-9))
    body = EXAMPLE_REQUEST | {"cluster": {"pools": [{"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": n} for n in (1, 2)]}}
    found = planned(PlanRequest.model_validate(body))
    assert any(w.code == "search_stopped" for w in found.plan.warnings)
    assert found.plan.verdict == "fits"


def test_there_are_as_many_turns_as_cpus() -> None:
    """At least one."""
    assert cpus() >= 1


def test_turns_are_handed_on_in_the_order_of_waiting() -> None:
    """Nobody overtakes, and no turn is lost or made up on the way."""
    turns, order = Turns(1), list[int]()
    assert turns.take()

    def wait(number: int) -> None:
        assert turns.take(5)
        order.append(number)
        turns.give()

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        deadline = time.monotonic() + 5
        while len(turns._waiting) <= number and time.monotonic() < deadline:
            time.sleep(0.001)
    assert order == []
    turns.give()
    for thread in threads:
        thread.join(5)
    assert order == [0, 1, 2, 3, 4]
    assert turns.take(0)
    assert not turns.take(0)


def test_who_gave_up_waiting_is_handed_nothing() -> None:
    """Its turn goes to the next, not to a thread that has left."""
    turns = Turns(1)
    assert turns.take()
    assert not turns.take(0.01)
    turns.give()
    assert turns.take(0)


def test_few_small_questions_compute_at_once() -> None:
    """The next one begins as soon as one is done, or makes way for being large."""
    used = Used()
    effort = Effort(at_once=2, timeout_s=5, used_s=used)
    begun = threading.Event()

    def later() -> None:
        with effort.budget():
            begun.set()

    with effort.budget() as first, effort.budget():
        thread = threading.Thread(target=later)
        thread.start()
        assert not begun.wait(0.1)
        used.grow()
        assert first.go_on()
        assert begun.wait(5)
        thread.join()
