"""Files of our own have no error, whatever the plan; and no file, however odd, breaks a rule."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from app.audit.torch.effective import effective_fsdp
from app.emit.accelerate import accelerate_config
from app.emit.job import EmitJob
from tests.audit.torch_examples import EXAMPLES
from tests.audit.torch_subjects import EXPERTS, QLORA, cluster, deepspeed, found, launch, mesh, model, subject, trainer, training
from tests.emit.test_hf_args import JOBS, arguments

CONTEXTS: list[dict[str, Any]] = [
    {},
    {"model": model(), "cluster": cluster(), "training": training(grad_accum=4, global_batch=64)},
    {"model": model(**QLORA), "cluster": cluster(gpus_per_node=1, host_bytes=None), "world_size": 3},
    {
        "model": model(**EXPERTS, num_layers=0),
        "cluster": cluster(nodes=8, supports=frozenset()),
        "arguments": {"optim": "paged_adamw_8bit"},
    },
]


def known(job: EmitJob) -> dict[str, Any]:
    """What a request says of the job."""
    s = job.settings
    classes = tuple(stack.block.class_name for stack in job.model.stacks if stack.block.class_name)
    return {
        "model": model(block_classes=classes),
        "cluster": cluster(gpus_per_node=s.gpus_per_node, nodes=s.nodes, supports=frozenset({"fp16", "bf16", "fp8"})),
        "training": training(grad_accum=s.grad_accum, precision=s.precision),
    }


@pytest.mark.parametrize("name", JOBS)
def test_no_error_in_accelerate_yaml(name: str) -> None:
    """What we write for accelerate starts."""
    config = yaml.safe_load(accelerate_config(JOBS[name]).text)
    findings = found(subject("accelerate", config, **known(JOBS[name])))
    assert [finding for finding in findings.values() if finding.severity == "error"] == []


@pytest.mark.parametrize("name", [name for name in JOBS if not name.endswith("parallel")])
def test_no_error_in_training_arguments(name: str) -> None:
    """What we write for the Trainer starts."""
    findings = found(subject("hf_trainer", arguments(JOBS[name]), "hf_trainer", **known(JOBS[name])))
    assert [finding for finding in findings.values() if finding.severity == "error"] == []


def test_plain_files_have_no_warning() -> None:
    """The files the examples start from are sound, so what an example finds is its own."""
    for kind, config in (("accelerate", launch()), ("accelerate", deepspeed({"zero_stage": 3})), ("hf_trainer", trainer())):
        findings = found(subject(kind, config))  # type: ignore[arg-type]
        assert [finding for finding in findings.values() if finding.severity != "info"] == []


def names_of(value: Any) -> set[str]:
    """Every key of a nested mapping."""
    return {str(key) for key in value} | {name for item in value.values() for name in names_of(item)} if isinstance(value, dict) else set()


def values_of(value: Any) -> list[Any]:
    """Every leaf of a nested mapping."""
    return [leaf for item in value.values() for leaf in values_of(item)] if isinstance(value, dict) else [value]


FILES = [example[1] for _, _, yes, no in EXAMPLES for example in (yes, no)]
NAMES = sorted(set().union(*(names_of(config) for config in FILES)) | names_of(mesh(sp_size=1)))
LEAVES = st.sampled_from([leaf for config in FILES for leaf in values_of(config)]) | st.one_of(
    st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.floats(), st.text(max_size=8), st.lists(st.integers(), max_size=2)
)
KEYS = st.sampled_from(NAMES) | st.text(max_size=6)
BLOCKS = st.dictionaries(KEYS, LEAVES | st.dictionaries(KEYS, LEAVES, max_size=3), max_size=6)
MAPPINGS = st.dictionaries(KEYS, LEAVES | BLOCKS, max_size=8)


@settings(max_examples=150, deadline=None)
@given(
    config=MAPPINGS,
    kind=st.sampled_from(["accelerate", "hf_trainer", "fsdp"]),
    launcher=st.sampled_from(["deepspeed", "hf_trainer", "accelerate"]),
    context=st.sampled_from(CONTEXTS),
    base=st.sampled_from([{}, launch(), deepspeed({}), trainer()]),
)
def test_no_file_breaks_a_rule(config: dict[str, Any], kind: Any, launcher: Any, context: dict[str, Any], base: dict[str, Any]) -> None:
    """Whatever is in a file, rules answer, and what acts is worked out."""
    given_file = subject(kind, {**base, **config}, launcher, **context)
    for finding in found(given_file).values():
        assert finding.message
        assert "None None" not in finding.message
    acting = effective_fsdp(given_file)
    assert acting is not None
    assert acting.framework in ("fsdp", "deepspeed", "ddp")
