"""The smoke-test model of every family transformers knows can be built and run, and is small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import CONFIGS
from tests.verify.harness import probe

pytestmark = pytest.mark.files("--smoke-test models", "transformers", "torch")


def test_smoke_models_of_real_configs_run(tmp_path: Path) -> None:
    """Models whose forward needs an image are the only ones that may fail."""
    answers: dict[str, list[Any]] = probe("families", tmp_path, *(str(path) for path in sorted(CONFIGS.glob("*.json"))))
    failed = {n: a[0] for n, a in answers.items() if a[0] not in ("ok", "not in transformers", "no vocabulary")}
    assert all("pixel_values" in message for message in failed.values()), failed
    assert sum(answer[0] == "ok" for answer in answers.values()) >= 40
    assert max(answer[1] for answer in answers.values()) < 500
