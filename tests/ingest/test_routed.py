"""Every mixture that can be read names the module its experts are in."""

from __future__ import annotations

import json
from pathlib import Path

from app.catalog.models import load_models
from app.ingest.hf_config import architecture_from_config
from app.ingest.hf_config.mixture import MIXTURES
from app.ingest.hf_config.routed import MOE_CLASSES
from tests import CONFIGS


def test_every_mixture_of_the_catalogue_and_the_samples_is_named() -> None:
    """A family added without its class would fail here, not on a cluster."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(CONFIGS.glob("*.json"))]
    neighbours = json.loads((Path(__file__).parent / "neighbours.json").read_text(encoding="utf-8"))
    configs = [*(file.get("config", file) for file in (*files, *neighbours)), *(model.config for model in load_models())]
    found = [architecture_from_config(config) for config in configs]
    named = {s.block.class_name: s.block.moe.class_name for model in found for s in model.stacks if s.block.moe}
    assert len(named) >= 35
    assert named.items() <= MOE_CLASSES.items()
    assert named["GptOssDecoderLayer"] == "GptOssMLP"
    assert named["DbrxBlock"] == "DbrxFFN"


def test_every_mixture_by_rules_is_named() -> None:
    """Also the families that no sample has."""
    assert {rules.layer or f"{rules.prefix}DecoderLayer" for rules in MIXTURES.values()} <= set(MOE_CLASSES)
