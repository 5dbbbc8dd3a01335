"""Every rule about FSDP, accelerate and the Trainer speaks where it should, is quiet beside it, and its edits mend the file."""

from __future__ import annotations

import copy
import re
from collections import Counter
from typing import Any

import pytest

from app.audit.finding import Change, Finding
from app.audit.registry import RULES, audit
from tests.audit.torch_examples import EXAMPLES, Example
from tests.audit.torch_subjects import OWN, found, launch, model, subject, training

IDS = [f"{name}-{number}" for number, (name, *_) in enumerate(EXAMPLES)]


def about(example: Example) -> dict[str, Finding]:
    """Findings of an example."""
    kind, config, more = example
    return found(subject(kind, config, **more))  # type: ignore[arg-type]


def edited(config: dict[str, Any], changes: tuple[Change, ...]) -> dict[str, Any]:
    """The file with the edits made."""
    config = copy.deepcopy(config)
    for change in changes:
        place = config
        for key in change.path[:-1]:
            if not isinstance(place.get(key), dict):
                place[key] = {}
            place = place[key]
        if change.remove:
            place.pop(change.path[-1], None)
        else:
            place[change.path[-1]] = change.value
    return config


@pytest.mark.parametrize(("name", "severity", "yes", "no"), EXAMPLES, ids=IDS)
def test_a_rule_speaks_and_is_quiet(name: str, severity: str, yes: Example, no: Example) -> None:
    """The finding is there with its severity, and the near miss has none."""
    findings = about(yes)
    assert name in findings, sorted(findings)
    assert findings[name].severity == severity
    assert name not in about(no)


@pytest.mark.parametrize(("name", "yes"), [(name, yes) for name, _, yes, _ in EXAMPLES], ids=IDS)
def test_the_edits_mend_the_file(name: str, yes: Example) -> None:
    """With the changes of a finding made, it is gone, and no error is new."""
    kind, config, more = yes
    before = about(yes)
    if not before[name].changes:
        return
    after = about((kind, edited(config, before[name].changes), more))
    assert name not in after or after[name].path != before[name].path
    assert {key for key, finding in after.items() if finding.severity == "error"} <= set(before)


def test_every_rule_has_an_example() -> None:
    """No rule is left out."""
    assert {name for name, *_ in EXAMPLES} == set(OWN)


def test_findings_are_written_for_people() -> None:
    """Every rule says why and what to write, in sentences; ids are of the three kinds."""
    for name in OWN:
        card = RULES[name].card
        assert re.fullmatch(r"(FS|AC|HF)\d{3}", name)
        assert card.why.endswith("."), name
        assert card.fix.endswith("."), name
        assert not card.title.endswith("."), name


def test_numbers_of_the_model_are_in_the_message() -> None:
    """8.03e9 parameters: 15 GiB of whole gradients, and 15 GiB gathered by one unit."""
    held = found(subject("accelerate", launch(mixed_precision="bf16"), model=model(), training=training(grad_accum=4)))["FS023"]
    assert held.message == "4 micro-steps hold whole gradients of 2 bytes a parameter: 8.03e9 × 2 bytes = 15 GiB more on each GPU"
    whole = found(subject("accelerate", launch({"fsdp_auto_wrap_policy": ...}, mixed_precision="bf16"), model=model()))["FS016"]
    assert "8.03e9 × 2 bytes = 15 GiB" in whole.message


def test_several_findings_of_one_rule_are_kept() -> None:
    """Two wrong names are two findings."""
    given = subject("fsdp", {"fsdp_sharding_strategy": "ZERO3", "fsdp_auto_wrap_policy": "TRANSFORMER_WRAP"})
    assert Counter(finding.id for finding in audit(given).findings)["FS003"] == 2
