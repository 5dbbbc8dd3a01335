"""The leaf classes of each mixture are modules of the model transformers builds, and hold every expert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests import CONFIGS
from tests.verify.harness import ROOT, probe

NEVER_CALLED = "JetMoeMoA"
"""The mixture inside JetMoe's attention: its methods are called, the module is not, and its tensors' own modules run on every rank."""


def test_the_named_module_holds_the_experts(tmp_path: Path) -> None:
    """Each expert tensor of a built model lies inside one of the classes; some families need code that transformers has not."""
    files = [*map(str, sorted(CONFIGS.glob("*.json"))), str(ROOT / "tests" / "ingest" / "neighbours.json")]
    answers: dict[str, Any] = probe("leaves", tmp_path, *files)
    built = {name: answer for name, answer in answers.items() if answer["around"] is not None}
    outside = {
        name: answer
        for name, answer in built.items()
        if not answer["around"] or not all({*answer["classes"], NEVER_CALLED} & set(around) for around in answer["around"])
    }
    assert not outside
    assert {c for answer in built.values() for c in answer["classes"]} >= {"GptOssMLP", "DbrxFFN", "MixtralSparseMoeBlock"}
    assert len({c for answer in built.values() for c in answer["classes"]}) >= 30
