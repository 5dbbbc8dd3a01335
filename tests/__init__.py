"""The tests of Shardplan."""

from pathlib import Path

CONFIGS = Path(__file__).parent / "data" / "model_configs"
"""Configs of released models with their true parameter counts, one JSON file each."""
