"""No question costs more than it may: pools, objectives that stretch it, degrees, and time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from app.domain.cluster.cluster import MOST_SETS, Pool, joined, leaves_sets_out, pool_choices
from app.domain.errors import InvalidRequestError, UnavailableError
from app.domain.plan import Plan
from app.domain.search import scan as scan_module
from app.domain.search.budget import MOST_OF_A_PROBE, MOST_PROBED, Budget
from app.domain.search.evaluate import with_recipe
from app.domain.search.mesh import meshes_at_most
from app.domain.search.planner import Question, make_plan
from app.domain.search.scan import any_fits, search
from app.domain.search.space import MAX_CANDIDATES, MOST_MESHES, WIDTHS, build_space
from app.domain.search.stretch import largest, smaller_pools, stretched
from app.services.request import PlanRequest
from app.services.resolve import resolve

LLAMA = {"preset": "llama-3.1-8b"}
H100 = {"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "host_memory_gib": 2048}
MANY_DEGREES = {
    "num_layers": 840, "hidden_size": 5040, "num_heads": 2520, "num_kv_heads": 2520, "head_dim": 2, "ffn_hidden_size": 5040,
    "vocab_size": 5040,
}  # fmt: skip


def question(model: dict[str, Any], nodes: list[int], objective: str = "throughput", **training: Any) -> Question:
    """A question about pools of so many nodes."""
    body = {
        "model": model, "training": {"seq_len": 4096} | training, "objective": objective,
        "cluster": {"pools": [H100 | {"nodes": n} for n in nodes]},
    }  # fmt: skip
    return resolve(PlanRequest.model_validate(body)).question


class Counted:
    """Candidates and spaces of the searches that a test makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.candidates = self.spaces = 0

        def build(*args: Any, **kwargs: Any) -> Any:
            space = build_space(*args, **kwargs)
            self.candidates, self.spaces = self.candidates + len(space), self.spaces + 1
            return space

        monkeypatch.setattr(scan_module, "build_space", build)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """What the test's questions cost."""
    return Counted(monkeypatch)


@pytest.mark.parametrize(("nodes", "sets"), [([1] * 8, 8), ([1, 1, 2], 5), ([1, 2, 3, 4, 5], 31), ([1, 1, 1, 2, 2, 2, 3, 3], 35)])
def test_equal_pools_are_not_told_apart(nodes: list[int], sets: int) -> None:
    """Choices are sets of kinds of pools, each once, and no set that the exhaustive list has is missing."""
    pools = question(LLAMA, nodes).pools
    every = {some.nodes for n in range(1, len(pools) + 1) for c in combinations(pools, n) if (some := joined(c))}
    choices = pool_choices(pools)
    assert leaves_sets_out(pools) is (sets > MOST_SETS)
    if sets <= MOST_SETS:
        assert len(choices) == sets
        assert {pool.nodes for pool in choices} == every


def test_of_many_unequal_pools_the_plainest_sets_are_tried() -> None:
    """Each alone and the fastest two, three, … of those that can be joined; the plan says so."""
    asked = question(LLAMA, [1, 2, 3, 4, 5, 6, 7, 8])
    other = replace(asked.pools[7], node=replace(asked.pools[7].node, gpus_per_node=4))
    pools = (*asked.pools[:7], other)
    members = {pool.members for pool in pool_choices(pools)}
    assert {(i,) for i in range(8)} <= members
    assert {(0, 1, 2, 3, 4, 5, 6), (5, 6), (4, 5, 6)} <= members
    assert len(members) == 8 + 6
    plan = make_plan(replace(asked, pools=pools))
    said = next(w for w in plan.warnings if w.code == "search_narrowed")
    assert (said.field, "31" in said.message) == ("cluster.pools", True)


@pytest.mark.parametrize(
    ("asked", "spaces"),
    [
        (lambda: question(LLAMA, [1] * 8), 8),
        (lambda: question(LLAMA, [1, 2, 3, 4, 5, 6, 7, 8]), 15),
        (lambda: question(LLAMA, [16, 32, 48, 64, 80, 96, 112, 128], "longest_sequence"), 80),
        (lambda: question(LLAMA, [1] * 8, "largest_micro_batch"), 80),
        (lambda: question({"params": 1e13}, [63, 65], "fewest_gpus", seq_len=2**20), 600),
    ],
)
def test_what_a_question_costs_is_bounded(counted: Counted, asked: Callable[[], Question], spaces: int) -> None:
    """Candidates of the last search and of all probes, and how many searches there are, whatever the pools are."""
    make_plan(asked())
    assert counted.candidates <= MAX_CANDIDATES + MOST_PROBED + MOST_OF_A_PROBE
    assert counted.spaces <= spaces


def test_probes_end_where_their_bound_is() -> None:
    """The answer is what was found by then, and says that more may fit."""
    asked = question(LLAMA, [1], "longest_sequence")
    whole, budget = stretched(asked, Budget()), Budget(probes=5_000)
    part = stretched(asked, budget)
    assert 0 < part.setup.recipe.seq_len < whole.setup.recipe.seq_len
    assert budget.stopped == ["larger ones than the planned may fit as well"]
    plan = make_plan(asked, Budget(probes=5_000))
    assert plan.recommended.settings.seq_len == part.setup.recipe.seq_len
    assert plan.verdict != "does_not_fit"
    assert [w.code for w in plan.warnings].count("search_stopped") == 1


@pytest.mark.parametrize("objective", ["longest_sequence", "largest_micro_batch"])
@pytest.mark.parametrize("nodes", [[1, 2], [2, 1, 3]])
def test_pool_after_pool_finds_what_all_together_find(objective: str, nodes: list[int]) -> None:
    """The largest of each pool alone, by asking every pool about every number."""
    asked = question(LLAMA, nodes, objective)
    field, step = ("seq_len", 256) if objective == "longest_sequence" else ("micro_batch", 1)
    pools = pool_choices(asked.pools)
    surely = objective == "largest_micro_batch"

    def fits(number: int) -> bool:
        setup = with_recipe(asked.setup, **{field: number * step})
        pins = replace(asked.constraints, pipeline_parallel=1, sequence_parallel=1, expert_parallel=1)
        return any(any_fits(replace(setup, pool=pool), pins, Budget(), surely=surely) for pool in pools)

    assert getattr(stretched(asked, Budget()).setup.recipe, field) == largest(fits, 2**16) * step


@pytest.mark.parametrize("seq_len", [2**12, 2**18, 2**20, 2**22])
@pytest.mark.parametrize("surely", [False, True])
def test_a_probe_says_what_the_whole_search_says(seq_len: int, surely: bool) -> None:
    """Whether anything with a script fits, though it stops at the first that does."""
    asked = question(LLAMA, [2], seq_len=seq_len)
    table = search(asked.setup, asked.constraints).table
    fitting = (table.safe if surely else table.fits) & table.written
    assert any_fits(asked.setup, asked.constraints, Budget(), surely=surely) is bool(fitting.any())


def test_degrees_beyond_count_are_narrowed() -> None:
    """A model whose heads, layers and length have many divisors, on as many devices."""
    asked = question({"shape": MANY_DEGREES}, [1], seq_len=5040 * 16)
    pool = replace(asked.pools[0], node=replace(asked.pools[0].node, gpus_per_node=840), nodes=1200)
    setup = replace(asked.setup, pool=pool)
    assert meshes_at_most(setup, asked.constraints, WIDTHS[0]) > MOST_MESHES
    space = build_space(setup, asked.constraints)
    assert len(space.meshes) <= MOST_MESHES
    assert space.narrowed


def test_smaller_pools_are_few() -> None:
    """Every number of nodes that clusters have, and a bounded number of those nobody has; one node and all of them are among them."""
    pool = question(LLAMA, [1]).pools[0]
    assert len(smaller_pools(replace(pool, nodes=200))) == 7 + 200
    huge = replace(pool, node=replace(pool.node, gpus_per_node=1024), nodes=1000)
    for choices in (1, 15):
        few = smaller_pools(huge, choices)
        assert len(few) < 400
        assert (few[0].world_size, few[-1].world_size) == (1, huge.world_size)


class Clock:
    """Time that is over after so many looks at it."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def __call__(self) -> bool:
        self.looks -= 1
        return self.looks >= 0


def stopped(plan: Plan) -> str:
    """What the plan says was left undone."""
    return next(w.message for w in plan.warnings if w.code == "search_stopped")


def test_time_that_is_over_leaves_the_best_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is one of the combinations that were judged, and says how many were not."""
    monkeypatch.setattr(scan_module, "CHUNK", 256)
    asked = question(LLAMA, [4])
    whole, part = make_plan(asked), make_plan(asked, Budget(go_on=Clock(8)))
    assert 0 < part.candidates < whole.candidates
    assert f"{part.candidates:,} of {whole.candidates:,} combinations on 32 GPUs were judged" in stopped(part)
    assert part.verdict == "fits"
    assert part.ladder
    assert not any(w.code == "search_stopped" for w in whole.warnings)


def test_nothing_that_fits_is_no_answer_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was judged first does not fit, and something else would: the question has to be made smaller, or asked again."""
    monkeypatch.setattr(scan_module, "CHUNK", 256)
    with pytest.raises(UnavailableError, match=r"nothing that was tried by then fits: .* Pin a strategy"):
        make_plan(question(LLAMA, [4]), Budget(go_on=Clock(0)))


def test_time_that_is_over_ends_the_sets_of_pools() -> None:
    """Those of most pools were tried."""
    plan = make_plan(question(LLAMA, [1, 2, 3]), Budget(go_on=Clock(4)))
    assert "of 7 sets of pools were tried" in stopped(plan)
    assert plan.verdict == "fits"


def test_time_that_is_over_ends_the_search_for_the_fewest() -> None:
    """All devices are planned then."""
    asked = question({"params": 7e10}, [8], "fewest_gpus")
    asked = replace(asked, constraints=replace(asked.constraints, offload_optimizer="none", offload_parameters="none"))
    plan = make_plan(asked, Budget(go_on=Clock(2)))
    assert "of which none fits" in stopped(plan)
    assert plan.recommended.settings.world_size == 64


def test_time_that_is_over_ends_the_ways_out() -> None:
    """Nothing fits, and no way is computed any more."""
    asked = question({"params": 1e13}, [1])
    assert make_plan(asked).ways_out
    assert make_plan(asked, Budget(go_on=Clock(0))).ways_out == ()


def test_pools_that_cannot_run_are_no_answer_to_time() -> None:
    """Where the first sets are refused, the next is tried however late it is."""
    asked = question(LLAMA, [1, 3], global_batch=8)
    pools: tuple[Pool, ...] = tuple(asked.pools)
    with pytest.raises(InvalidRequestError):
        make_plan(replace(asked, pools=pools[1:], constraints=replace(asked.constraints, strategy="zero1")))
    plan = make_plan(replace(asked, constraints=replace(asked.constraints, strategy="zero1")), Budget(go_on=Clock(0)))
    assert plan.recommended.settings.world_size == 8
