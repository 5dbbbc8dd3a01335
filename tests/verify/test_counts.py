"""What the emitted scripts make the libraries send and keep is what the plan says, byte for byte where a term is exact.

Tiny models of odd sizes train on CPU ranks, case after case in one launch, and the last of three steps is counted
(tests/verify/counting.py). What the terms leave out is written out in planned_counts.py: what each library adds to divide
evenly, and messages of a few elements.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.domain.cards import CARDS
from app.emit.deepspeed import deepspeed_config
from tests.verify.harness import LIMIT_S, ROOT, environment, write_files
from tests.verify.planned_counts import Planned, planned

LORA = {"kind": "lora", "rank": 4, "targets": "all-linear", "dropout": 0.0}
EVEN_HEADS = {"hidden_size": 88, "num_attention_heads": 4, "num_key_value_heads": 2}
NO_PREFETCH = {"prefetch_bucket_numel": 0}

TWO_RANKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ddp": ("ddp", "ddp", {"grad_accum": 2}),
    "ddp lora": ("ddp", "ddp", {"adapter": LORA}),
    "grad-op": ("fsdp2", "fsdp_grad_op", {"grad_accum": 2}),
    "fsdp2": ("fsdp2", "fsdp_full", {}),
    "fsdp2 accumulated": ("fsdp2", "fsdp_full", {"grad_accum": 2}),
    "fsdp2 fp32": ("fsdp2", "fsdp_full", {"precision": "fp32"}),
    "fsdp2 pure bf16": ("fsdp2", "fsdp_full", {"master_weights": False}),
    "fsdp2 tied": ("fsdp2", "fsdp_full", {"config": {"tie_word_embeddings": True}}),
    "fsdp2 checkpointed": ("fsdp2", "fsdp_full", {"activation_checkpointing": "full"}),
    "fsdp2 lora": ("fsdp2", "fsdp_full", {"adapter": LORA}),
    "stage 0": ("deepspeed", "ddp", {"grad_accum": 2}),
    "zero1": ("deepspeed", "zero1", {}),
    "zero1 accumulated": ("deepspeed", "zero1", {"grad_accum": 2}),
    "zero1 fp32 gradients": ("deepspeed", "zero1", {"grad_accum": 2, "grad_dtype": "fp32"}),
    "zero2": ("deepspeed", "zero2", {}),
    "zero2 accumulated": ("deepspeed", "zero2", {"grad_accum": 2}),
    "zero2 fp32 gradients": ("deepspeed", "zero2", {"grad_accum": 2, "grad_dtype": "fp32"}),
    "zero2 fp32": ("deepspeed", "zero2", {"precision": "fp32"}),
    "zero2 lora": ("deepspeed", "zero2", {"adapter": LORA}),
    "zero3": ("deepspeed", "zero3", {}),
    "zero3 accumulated": ("deepspeed", "zero3", {"grad_accum": 2}),
    "zero3 pure bf16": ("deepspeed", "zero3", {"master_weights": False}),
    "zero3 lora": ("deepspeed", "zero3", {"adapter": LORA}),
    "zero3 muon": ("deepspeed", "zero3", {"optimizer": "muon"}),
    "zero3 no reuse": ("deepspeed", "zero3", {"lean": True}),
    "zero3 no reuse nor prefetch": ("deepspeed", "zero3", {"lean": True, "settings": NO_PREFETCH}),
    "zero3 no reuse nor prefetch, checkpointed": (
        "deepspeed",
        "zero3",
        {"lean": True, "settings": NO_PREFETCH, "activation_checkpointing": "full"},
    ),
    # Last: DeepSpeed keeps its mesh for the life of the process.
    "zero3 sequence": ("deepspeed", "zero3", {"config": EVEN_HEADS, "constraints": {"sequence_parallel": 2}}),
}
FOUR_RANKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "hsdp": ("fsdp2", "hsdp", {"group": 2, "grad_accum": 2}),
    "zero2 on four": ("deepspeed", "zero2", {}),
    "zero3 on four": ("deepspeed", "zero3", {}),
    "hpz": ("deepspeed", "zero3", {"group": 2, "grad_accum": 2}),
}
CASES = TWO_RANKS | FOUR_RANKS
BOUNDED = {"zero3 no reuse"}
"""Cases whose gathers the plan only bounds: what is gathered ahead is kept, however little is to be reused."""
CHECKPOINTED = "zero3 no reuse nor prefetch, checkpointed"

Seen = dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def plans() -> dict[str, Planned]:
    """The plan of each case."""
    found = {name: planned(framework, strategy, **changes) for name, (framework, strategy, changes) in TWO_RANKS.items()}
    four = {name: planned(framework, strategy, ranks=4, **changes) for name, (framework, strategy, changes) in FOUR_RANKS.items()}
    return found | four


@pytest.fixture(scope="module")
def counted(plans: dict[str, Planned], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Seen]:
    """``counted(case)``: what its ranks sent and kept; all cases of as many ranks run at the first question."""
    root, known = tmp_path_factory.mktemp("counts"), dict[str, Seen]()

    def look(name: str) -> Seen:
        if name not in known:
            ranks, cases = (2, TWO_RANKS) if name in TWO_RANKS else (4, FOUR_RANKS)
            known.update(launched({case: plans[case] for case in cases}, root / str(ranks), ranks))
        return known[name]

    return look


def launched(plans: dict[str, Planned], folder: Path, ranks: int) -> dict[str, Seen]:
    """Run the script of each plan with probe_counts.py, all in the same processes."""
    scripts = {name: str(script_of(plan, folder / str(place))) for place, (name, plan) in enumerate(plans.items())}
    (folder / "cases.json").write_text(json.dumps(scripts), encoding="utf-8")
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [str(ROOT / "tests" / "verify" / "probe_counts.py"), str(folder / "cases.json")]
    result = subprocess.run(
        command,
        cwd=folder,
        env={**environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * LIMIT_S,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-6000:]
    answer: dict[str, Seen] = json.loads((folder / "cases.json.counts").read_text(encoding="utf-8"))
    return answer


def script_of(plan: Planned, folder: Path) -> Path:
    """The emitted training script in a folder of its own, with the files beside it.

    None is written for sequence parallelism: there the plain one runs with the ds_config.json of the plan.
    """
    s = plan.job.settings
    if s.sequence_parallel == 1:
        return write_files(plan.job, folder)
    ranks = s.dp * s.sequence_parallel
    plain = replace(s, sequence_parallel=1, dp_shard=ranks, global_batch=s.global_batch * s.sequence_parallel)
    script = write_files(replace(plan.job, settings=plain), folder)
    (folder / "ds_config.json").write_text(deepspeed_config(plan.job).text, encoding="utf-8")
    return script


def named(seen: dict[str, int], word: str) -> dict[str, int]:
    """Entries of one collective."""
    return {name: value for name, value in seen.items() if name.startswith(word)}


@pytest.mark.parametrize("name", CASES)
def test_reductions_are_those_of_the_plan(counted: Callable[[str], Seen], plans: dict[str, Planned], name: str) -> None:
    """Bytes of all-reduces and reduce-scatters, over the planned groups and over no others."""
    seen, plan = counted(name)["payload"], plans[name]
    for kind in ("all_reduce", "reduce_scatter"):
        expected = named(plan.payload(), kind)
        assert named(seen, kind).keys() == expected.keys()
        for group, total in expected.items():
            assert seen[group] - total == pytest.approx(plan.reduction_padding(kind), abs=2)


@pytest.mark.parametrize("name", [case for case in CASES if case not in BOUNDED])
def test_gathers_are_those_of_the_plan(counted: Callable[[str], Seen], plans: dict[str, Planned], name: str) -> None:
    """Bytes of all-gathers: as often as weights are resharded or updated, and over which ranks."""
    seen, plan = named(counted(name)["payload"], "all_gather"), plans[name]
    expected = named(plan.payload(), "all_gather")
    assert seen.keys() == expected.keys()
    for group, total in expected.items():
        # A recompute does not fetch the norms, which the plan's third gather counts with their blocks.
        slack = 0.0005 * total if name == CHECKPOINTED else 2
        assert seen[group] - total == pytest.approx(plan.gather_padding(group), abs=slack)


@pytest.mark.parametrize("name", sorted(BOUNDED))
def test_gathers_stay_below_the_bound(counted: Callable[[str], Seen], plans: dict[str, Planned], name: str) -> None:
    """At least one gather, at most what the plan says."""
    seen, plan = named(counted(name)["payload"], "all_gather"), plans[name]
    assert plan.params * 2 <= seen["all_gather over 2"] < plan.payload()["all_gather over 2"]


@pytest.mark.parametrize("name", CASES)
def test_nothing_else_is_sent(counted: Callable[[str], Seen], name: str) -> None:
    """No other collective, and less than a kilobyte of norms, flags and buffers a step."""
    others = {key: size for key, size in counted(name)["payload"].items() if not key.startswith(("all_", "reduce_scatter"))}
    assert all(key.startswith("control ") for key in others)
    assert sum(others.values()) < 1000


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("state", ["parameters", "master weights", "optimizer states"])
def test_states_take_what_the_plan_says(counted: Callable[[str], Seen], plans: dict[str, Planned], name: str, state: str) -> None:
    """Distinct storages of each state, between two steps."""
    plan, seen = plans[name], counted(name)["after"].get(state, 0)
    assert seen - plan.state(state) == pytest.approx(plan.state_padding(state), abs=2)


@pytest.mark.parametrize("name", CASES)
def test_gradients_take_what_the_plan_says(counted: Callable[[str], Seen], plans: dict[str, Planned], name: str) -> None:
    """When the update begins, on the rank that has most: ZeRO-1 and 2 keep tensors that a partition cuts whole."""
    plan, seen = plans[name], counted(name)["before"]["gradients"]
    assert seen - plan.state("gradients") == pytest.approx(plan.state_padding("gradients"), abs=8)


@pytest.mark.parametrize("name", [case for case, (framework, *_) in CASES.items() if framework == "fsdp2" or case.startswith("zero2")])
def test_nothing_else_outlives_a_step(counted: Callable[[str], Seen], name: str) -> None:
    """Gradients are gone under FSDP2 and ZeRO-2, and what else is alive is a few buffers of the model."""
    after = counted(name)["after"]
    assert after["gradients"] == 0
    assert 0 < after["rest"] < 2000


@pytest.mark.parametrize("name", ["zero3", "zero3 accumulated", "zero3 lora", "zero3 on four", "hpz"])
def test_zero3_keeps_its_whole_bucket(counted: Callable[[str], Seen], plans: dict[str, Planned], name: str) -> None:
    """Between steps as well, however little is trained; beside it only small tensors."""
    s = plans[name].job.settings
    assert 0 < counted(name)["after"]["rest"] - 2 * s.reduce_bucket_numel < 20_000


def test_hpz_keeps_its_secondary_copy(counted: Callable[[str], Seen], plans: dict[str, Planned]) -> None:
    """A second shard of the 16-bit weights, over the ranks of one node, until the step."""
    plan, held = plans["hpz"], {name: counted(name)["before"]["rest"] for name in ("hpz", "zero3 on four")}
    assert plan.term("secondary parameter copy (hpZ)") == plan.params
    assert held["hpz"] - held["zero3 on four"] == pytest.approx(plan.params, rel=0.01)


def test_terms_that_were_counted_are_called_exact() -> None:
    """Their cards claim it, and this is where it is shown; gathers are derived where ZeRO-3 lets parameters go."""
    exact = {key for key, card in CARDS.items() if key.startswith("traffic.") and card.sureness == "exact"}
    names = ("all_reduce", "reduce_scatter", "step_gather", "replica")
    assert exact == {f"traffic.volumes.{name}_sent_bytes" for name in names} | {"traffic.muon.muon_sent_bytes"}
