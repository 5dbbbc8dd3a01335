"""Documentation that is generated equals what would be generated now, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.catalog.data import document
from app.catalog.glossary import load_symbols, load_terms
from app.domain.sources import SOURCES
from app.services.method.figures import all_cards
from bench.method import audit_rules, glossary, pages

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "name", ["checkpoint.md", "deepspeed_names.md", "fsdp_names.md", "memory.md", "traffic.md", "speed.md", "strategies.md"]
)
def test_method_pages_are_current(name: str) -> None:
    """docs/method is what the cards say today; `make bench ARGS=method` rewrites it."""
    assert (ROOT / "docs" / "method" / name).read_text() == pages()[name]


def test_the_glossary_is_current() -> None:
    """docs/glossary.md is what the data says; every symbol of an equation is explained, and nothing else."""
    assert (ROOT / "docs" / "glossary.md").read_text() == glossary()
    assert len({word.key for word in load_terms()}) == len(load_terms())
    assert set(load_symbols()) == {name for card in all_cards().values() for name in card.named}


def test_the_rules_of_the_audit_are_current() -> None:
    """docs/rules.md has a line for every registered rule; `make bench ARGS=method` rewrites it."""
    assert (ROOT / "docs" / "rules.md").read_text() == audit_rules()


def test_accuracy_and_its_data_are_of_one_run() -> None:
    """docs/accuracy.md and the data behind /method/accuracy come from `make bench ARGS=accuracy` under the same engine."""
    page, data = (ROOT / "docs" / "accuracy.md").read_text(), document("accuracy")
    assert f"Engine {data['engine_version']}." in page
    assert data["simulated"] in page
    for section in data["sections"]:
        part = page.split(f"## {section['title']}\n")[1].split("\n## ")[0]
        assert section["verdicts"] in part or section["unit"] == "bytes"
        assert all(f"| {family['family']} | {family['rows']} | " in part for family in section["families"])
        assert f"Median over all rows: {section['pooled_median_error_frac']:.1%}." in part


def test_every_card_cites_and_computes() -> None:
    """Each card has a registered source, an equation in its own arguments and a sentence of explanation."""
    assert len(all_cards()) > 30
    for card in all_cards().values():
        assert card.source in SOURCES
        assert card.doc
        assert re.search(r"[A-Za-z]", card.equation)


def test_readme_commands_exist() -> None:
    """Every make target that README, CONTRIBUTING and docs name is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    text = "".join((ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md", "docs/operations.md"))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE))
    assert {"run", "test"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
