"""Emitted training scripts compile, satisfy a linter and hold what their plan says."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import ConflictError
from app.domain.model.architecture import Architecture
from app.domain.plan import Artifact
from app.emit import files_for
from app.emit.ddp import ddp_script
from app.emit.fsdp2 import fsdp2_script
from app.emit.launch import train_script
from app.emit.model_source import config_text
from tests.emit.jobs import make_job, tiny_llama
from tests.emit.variants import all_jobs

JOBS = all_jobs()
UNWRITTEN = {"fsdp2 qlora", "fsdp2 qlora 8", "ddp tensor parallel"}
SCRIPT_LINES = 430
LINT = ["--line-length", "120", "--target-version", "py310", "--isolated", "--no-cache"]
RULES = "A,ARG,B,C4,E,F,I,N,PIE,PTH,RET,RUF,SIM,UP,W"


def script_of(name: str) -> Artifact | None:
    """The training script of a variant."""
    return train_script(JOBS[name])


def run_ruff(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Ruff, apart from this project's configuration."""
    command = [sys.executable, "-m", "ruff", *arguments, *LINT, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All scripts of all variants, written once."""
    root = tmp_path_factory.mktemp("scripts")
    for name in JOBS:
        if script := script_of(name):
            path = root / name.replace(" ", "-") / script.filename
            path.parent.mkdir()
            path.write_text(script.text, encoding="utf-8")
    return root


def test_every_variant_but_three_has_a_script(folder: Path) -> None:
    """What cannot be written is left out, not written wrong."""
    written = {path.parent.name.replace("-", " ") for path in folder.glob("*/*.py")}
    assert set(JOBS) - written == UNWRITTEN


def test_scripts_are_lint_clean(folder: Path) -> None:
    """Imports in order and all used, no line too long, no undefined name."""
    result = run_ruff("check", "--select", RULES, "--output-format", "concise", folder=folder)
    assert result.returncode == 0, result.stdout


def test_scripts_are_formatted(folder: Path) -> None:
    """The text is what the formatter would leave alone."""
    result = run_ruff("format", "--check", "--diff", folder=folder)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", JOBS)
def test_scripts_compile_and_stay_readable(name: str) -> None:
    """Each parses as Python, has a docstring with its own launch line and fits a few screens."""
    script = script_of(name)
    if script is None:
        assert name in UNWRITTEN
        return
    tree = ast.parse(script.text)
    assert f"{script.filename} --smoke-test" in (ast.get_docstring(tree) or "")
    assert script.text.count("\n") <= SCRIPT_LINES
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert max((node.end_lineno or 0) - node.lineno for node in functions) <= 50


def constants(script: Artifact) -> dict[str, str]:
    """Module-level assignments as source text."""
    found: dict[str, str] = {}
    for node in ast.parse(script.text).body:
        if isinstance(node, ast.Assign):
            target, value = ast.unparse(node.targets[0]), ast.unparse(node.value)
            found[target] = value
    return found


def test_the_plan_is_at_the_top_of_the_script() -> None:
    """Batch, dtypes, layers and the planned peak are constants a reader finds first."""
    script = fsdp2_script(make_job(framework="fsdp2", seq_len=4096, micro_batch=3, global_batch=48, gradient_clipping=0.5))
    values = constants(script)
    assert values["(SEQ_LEN, MICRO_BATCH, GLOBAL_BATCH)"] == "(4096, 3, 48)"
    assert values["COMPUTE_DTYPE"] == "torch.bfloat16"
    assert values["PARAM_DTYPE"] == "torch.float32"
    assert values["REDUCE_DTYPE"] == "torch.float32"
    assert values["CLIP_NORM"] == "0.5"
    assert values["BLOCK_CLASSES"] == "{'LlamaDecoderLayer'}"
    assert values["PLANNED"] == "{'allocated': '61 GiB', 'reserved': '66 GiB'}"


@pytest.mark.parametrize(
    ("changes", "present", "absent"),
    [
        ({}, "reshard_after_forward=True", "reshard_after_forward=False, **options)\n    # Embedding"),
        ({"strategy": "fsdp_grad_op"}, "submodule(name), reshard_after_forward=False", "reshard_after_forward=True"),
        ({"strategy": "hsdp", "dp_replicate": 2, "dp_shard": 4}, '"dp_replicate"', "TENSOR_PARALLEL"),
        ({"offload_parameters": "cpu"}, "CPUOffloadPolicy(pin_memory=", "device=device)\n    model_state"),
        ({"activation_checkpointing": "full"}, "checkpoint_wrapper(block)", "keep_every_second_matmul"),
        ({"compile": True}, "torch.compile(", "checkpoint_wrapper(block)"),
        ({"precision": "fp16"}, "GradScaler", "autocast"),
        ({"optimizer_implementation": "foreach"}, "foreach=True", "fused=True"),
        ({"optimizer_in_backward": True, "grad_accum": 1}, "post_accumulate_grad_hook", "clip_grad_norm_"),
        ({"precision": "fp32"}, "fully_shard(", "MixedPrecisionPolicy"),
    ],
)
def test_settings_become_code(changes: dict[str, Any], present: str, absent: str) -> None:
    """Each setting adds its lines and those of the alternatives are gone."""
    text = fsdp2_script(make_job(framework="fsdp2", **changes)).text
    assert present in text
    assert absent not in text


def test_the_optimizer_is_built_after_sharding_and_blocks_are_prepared_before() -> None:
    """Built earlier it would hold weights that are no longer the model's and train nothing."""
    text = fsdp2_script(make_job(framework="fsdp2", activation_checkpointing="full")).text
    shard = text[text.index("def shard_model") :]
    assert shard.index("prepare_block(") < shard.index("fully_shard(")
    main = text[text.index("def main") :]
    assert main.index("shard_model(") < main.index("fill(") < main.index("make_optimizers(")


def test_ddp_autocasts_only_over_fp32_weights() -> None:
    """A model stored in bf16 needs no autocast; one in fp32 does."""
    assert "torch.autocast" in ddp_script(make_job(framework="ddp")).text
    assert "torch.autocast" not in ddp_script(make_job(framework="ddp", param_dtype="bf16")).text
    assert "torch.autocast" not in ddp_script(make_job(framework="ddp", precision="fp32")).text


def other_kind(kind: Any) -> Architecture:
    """A model whose training loop cannot be known."""
    return replace(tiny_llama(), kind=kind, vocab_size=0)


@pytest.mark.parametrize(
    ("model", "changes", "word"),
    [
        (other_kind("diffusion"), {}, "diffusion"),
        (None, {"pipeline_parallel": 2}, "pipeline_parallel"),
        (None, {"sequence_parallel": 2}, "sequence_parallel"),
        (None, {"expert_parallel": 2}, "expert_parallel"),
    ],
)
def test_what_has_no_script_says_so_and_keeps_its_other_files(model: Architecture | None, changes: dict[str, Any], word: str) -> None:
    """The configuration files remain, and launch.sh asks for the user's own script."""
    job = make_job(model=model, framework="fsdp2", **changes)
    with pytest.raises(ConflictError, match=word):
        fsdp2_script(job)
    files = {file.filename: file.text for file in files_for(job)}
    assert set(files) == {"accelerate.yaml", "launch.sh"}
    assert "TRAIN_SCRIPT" in files["launch.sh"]


@pytest.mark.parametrize(
    "config",
    [
        {"a": 1, "nested": {"b": [1, 2.5, None, True], "c": {}}, "long": list(range(200))},
        {"quotes": '"""', "end": "\\", "two": '\\"\\"\\"', "newline": "a\nb", "": ["", "", ""], "emoji": "🙂 \u2028"},
        {"limits": [0.0, float("inf")], "layers": ["full_attention"] * 80},
    ],
)
def test_an_embedded_config_comes_back_unchanged(config: dict[str, Any]) -> None:
    """Through JSON inside a raw Python string, whatever the strings hold."""
    source = f'CONFIG = r"""{config_text(config)}"""'
    assert json.loads(ast.literal_eval(source.removeprefix("CONFIG = "))) == config
    assert max(len(line) for line in source.splitlines()) <= 120
