"""Each rule speaks where it should, is silent beside it, and is mended by its own changes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.audit.corrected import apply, corrected, minimal
from app.audit.deepspeed.effective import effective
from app.audit.deepspeed.keys import known_keys
from app.audit.finding import Finding
from app.audit.rules import RULES, audit
from tests.audit.examples import EXAMPLES, Example
from tests.audit.facts import LLAMA_8B, NODE, TRAINING, subject

IDS = [f"{n}-{example.rule}" for n, example in enumerate(EXAMPLES)]


def found(rule_id: str, config: dict[str, Any], context: dict[str, Any]) -> list[Finding]:
    """What one rule finds."""
    return [finding for finding in audit(subject(config, **context)).findings if finding.id == rule_id]


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_rule_finds_its_example(example: Example) -> None:
    """The place, how bad it is, and the number or word that decides."""
    hits = {(hit.path, hit.severity): hit for hit in found(example.rule, example.config, example.context)}
    assert (example.path, example.severity) in hits
    hit = hits[example.path, example.severity]
    assert example.says in f"{hit.message} {hit.fix}"
    assert hit.message.rstrip().endswith(".")


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_rule_is_silent_beside_it(example: Example) -> None:
    """The near miss has no such finding."""
    context = example.context if example.near_context is None else example.near_context
    assert not found(example.rule, example.near, context)


@pytest.mark.parametrize(
    "example", [example for example in EXAMPLES if example.mended], ids=lambda example: f"{example.rule}-{example.path}"
)
def test_changes_mend_it(example: Example) -> None:
    """With the changes of its hits written, the rule has nothing left to say."""
    config, hits = dict(example.config), found(example.rule, example.config, example.context)
    assert all(hit.changes for hit in hits)
    mended = corrected(config, [replace(hit, severity="warning") for hit in hits])
    assert not found(example.rule, mended, example.context), mended
    assert config == example.config


def test_every_rule_of_deepspeed_has_an_example() -> None:
    """No rule without one that speaks of it."""
    assert {example.rule for example in EXAMPLES} == {rule_id for rule_id in RULES if rule_id.startswith("DS")}


def test_corrected_file_has_no_error_left() -> None:
    """All findings mended at once: nothing fails any more."""
    for example in EXAMPLES:
        context = example.context
        config = corrected(example.config, audit(subject(example.config, **context)).findings)
        config = corrected(config, audit(subject(config, **context)).findings)
        left = [hit for hit in audit(subject(config, **context)).findings if hit.severity == "error" and hit.changes]
        assert not left, (example.rule, config, left)


def test_minimal_reads_the_same() -> None:
    """What is dropped says what the release takes anyway."""
    for example in EXAMPLES:
        given = subject(example.config, **example.context)
        least = minimal(example.config, given)
        assert effective(replace(given, config=least)) == effective(given)


def test_changes_take_empty_blocks_along() -> None:
    """A block that holds nothing else goes with its last key."""
    config: dict[str, Any] = {"aio": {"use_gds": True}, "bf16": {"enabled": True}}
    apply(config, found("DS060", config, {})[0].changes)
    assert config == {"bf16": {"enabled": True}}


LONG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {known.name: known.default("0.19.8") for known in known_keys().values() if known.block == "zero_optimization"}
    | {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": None, "zenflow": None, "leaf_module": {}},
    "bf16": {"enabled": True},
    "compile": {known.name: known.default("0.19.8") for known in known_keys().values() if known.block == "compile"},
    "data": {f"unknown_{n}": n for n in range(90)},
}


def test_two_hundred_lines_are_read_in_fifty_milliseconds() -> None:
    """The best of five, since others use the machine too."""
    given = subject(LONG, model=LLAMA_8B, cluster=NODE, training=TRAINING)
    took = []
    for _ in range(5):
        start = time.perf_counter()
        audit(given)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.05


NAMES = st.sampled_from([*sorted({part for path in known_keys() for part in path.split(".")}), "auto", "x", ""])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**12),
    st.floats(),
    st.sampled_from(["auto", "cpu", "nvme", "5e8", "8", "none", "true", "fp32"]),
    st.text(max_size=4),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=6), max_leaves=12)
PATHS = st.dictionaries(st.sampled_from(sorted(known_keys())), VALUES, max_size=12)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(paths=PATHS, extra=st.dictionaries(NAMES, VALUES, max_size=4), launcher=st.sampled_from(["deepspeed", "hf_trainer", "accelerate"]),
       release=st.sampled_from(["0.17.1", "0.18.3", "0.19.6", "0.19.8"]), world=st.one_of(st.none(), st.integers(1, 64)),
       arguments=st.dictionaries(st.sampled_from(["bf16", "per_device_train_batch_size", "warmup_steps", "max_grad_norm", "adam_beta1"]),
       SCALARS))  # fmt: skip
def test_no_configuration_makes_a_rule_raise(
    paths: dict[str, Any], extra: dict[str, Any], launcher: str, release: str, world: int | None, arguments: dict[str, Any]
) -> None:
    """Whatever JSON is given, there are findings, an effective reading and a corrected file."""
    config: dict[str, Any] = dict(extra)
    for path, value in paths.items():
        block, *keys = config, *path.split(".")
        for key in keys[:-1]:
            inner = block.get(key)
            block[key] = block = inner if isinstance(inner, dict) else {}
        block[keys[-1]] = value
    given_ = subject(
        config, launcher=launcher, release=release, world_size=world, arguments=arguments, model=LLAMA_8B, cluster=NODE, training=TRAINING
    )
    report = audit(given_)
    effective(given_)
    minimal(corrected(config, report.findings), given_)
