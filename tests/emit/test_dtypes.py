"""One plan, one set of dtypes: the settings, the configuration files and the scripts agree, and what a library changes is said."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from app.services.plan import Answer, answer
from tests.planning import request_of

MODEL = {"preset": "llama-3.2-1b"}
STEP = {"seq_len": 1024, "micro_batch": 1, "grad_accum": 2}
LORA = {"kind": "lora", "rank": 8}
RECIPES: dict[str, dict[str, Any]] = {
    "bf16": {},
    "fp16": {"precision": "fp16"},
    "fp32": {"precision": "fp32"},
    "fp8": {"precision": "fp8"},
    "pure bf16": {"master_weights": False},
    "gradients in fp32": {"grad_dtype": "fp32"},
    "lora": {"adapter": LORA},
    "lora in fp32": {"adapter": LORA | {"dtype": "fp32"}},
    "lora in bf16": {"adapter": LORA | {"dtype": "bf16"}},
}
STRATEGIES = [("deepspeed", "zero1"), ("deepspeed", "zero2"), ("deepspeed", "zero3"), ("fsdp2", "fsdp_full"), ("ddp", "ddp")]
TORCH = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}


def planned(framework: str, strategy: str, training: dict[str, Any]) -> Answer:
    """The answer with its files, from the request on."""
    return answer(request_of(MODEL, STEP | training, constraints={"framework": framework, "strategy": strategy}))


def in_script(text: str, name: str) -> str | None:
    """The dtype a constant of a script is set to."""
    found = re.search(rf"^{name} = (torch\.\w+)", text, re.MULTILINE)
    return TORCH[found[1]] if found else None


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("framework", "strategy"), STRATEGIES)
def test_every_dialect_names_the_dtypes_of_the_settings(framework: str, strategy: str, recipe: str) -> None:
    """Compute, stored weights, accumulation and wire, each as the file's library will take it."""
    given = planned(framework, strategy, RECIPES[recipe])
    settings = given.plan.recommended.settings
    files = {file.filename: file.text for file in given.plan.files}
    compute = "bf16" if settings.precision == "fp8" else settings.precision
    script = next(text for name, text in files.items() if name.endswith("_train.py"))
    assert in_script(script, "COMPUTE_DTYPE") == compute
    assert in_script(script, "PARAM_DTYPE") == settings.param_dtype
    if framework == "fsdp2" and compute != "fp32":
        assert in_script(script, "REDUCE_DTYPE") == settings.reduce_dtype
    assert ("convert_to_float8_training(" in script) is (settings.precision == "fp8")
    if framework == "deepspeed":
        check_ds_config(json.loads(files["ds_config.json"]), given, compute)
    else:
        check_accelerate(yaml.safe_load(files["accelerate.yaml"]), given, compute)
    check_trainer({file.filename: file.text for file in given.trainer_files}, files, compute)


def check_trainer(trainer: dict[str, str], files: dict[str, str], compute: str) -> None:
    """TrainingArguments ask for the precision accelerate.yaml has; under DeepSpeed for the compute dtype, which "auto" then means."""
    asked = [name for name in ("bf16", "fp16") if f'"{name}": True' in trainer["training_args.py"]]
    mixed = yaml.safe_load(files["accelerate.yaml"]).get("mixed_precision", compute)
    assert asked == ([mixed] if mixed in ("bf16", "fp16") else [])
    if "ds_config.json" in files:
        plain, automatic = json.loads(files["ds_config.json"]), json.loads(trainer["ds_config.json"])
        for name in ("bf16", "fp16", "data_types", "communication_data_type"):
            block = automatic.get(name)
            assert ({**block, "enabled": True} if isinstance(block, dict) and "enabled" in block else block) == plain.get(name)
            assert not isinstance(block, dict) or block.get("enabled", "auto") == "auto"


def check_ds_config(config: dict[str, Any], given: Answer, compute: str) -> None:
    """What DeepSpeed takes where a key is left out is the compute dtype."""
    settings = given.plan.recommended.settings
    assert [name for name in ("bf16", "fp16") if config.get(name, {}).get("enabled")] == ([compute] if compute != "fp32" else [])
    pure = config.get("bf16", {}).get("bf16_master_weights_and_grads", False)
    assert pure is (compute == "bf16" and settings.param_dtype == "bf16")
    assert config.get("bf16", {}).get("bf16_optimizer_states", False) is (pure and settings.optimizer_state_dtype == "bf16")
    assert config.get("data_types", {}).get("grad_accum_dtype", compute) == settings.grad_dtype
    bf16_optimizer = settings.strategy == "zero1" and settings.grad_dtype == "fp32" and compute == "bf16"
    if not bf16_optimizer:  # which sends in the compute dtype, whatever is asked
        assert config.get("communication_data_type", compute) == settings.reduce_dtype


def check_accelerate(config: dict[str, Any], given: Answer, compute: str) -> None:
    """Mixed precision means fp32 weights that are trained; without it they stay as they were loaded, and so does the compute."""
    settings = given.plan.recommended.settings
    codes = {w.code for w in given.plan.warnings}
    mixed = config["mixed_precision"]
    assert mixed in ("no", "bf16", "fp16")
    if mixed == "no":
        assert settings.param_dtype == compute
    else:
        assert mixed == compute
        assert settings.param_dtype == "fp32"
    # accelerate reduces in the compute dtype under FSDP2: where the plan does not, the answer says so.
    differs = settings.framework == "fsdp2" and mixed != "no" and settings.reduce_dtype != compute
    assert ("accelerate_reduces_in_16_bit" in codes) is differs


@pytest.mark.parametrize(
    ("code", "framework", "strategy", "recipe"),
    [
        ("mixed_precision_upcasts", "fsdp2", "fsdp_full", "pure bf16"),
        ("mixed_precision_upcasts", "ddp", "ddp", "pure bf16"),
        ("adapter_upcast", "fsdp2", "fsdp_full", "lora in bf16"),
        ("accelerate_reduces_in_16_bit", "fsdp2", "fsdp_full", "bf16"),
        ("fp8_needs_library", "ddp", "ddp", "fp8"),
    ],
)
def test_what_a_library_makes_of_it_is_said(code: str, framework: str, strategy: str, recipe: str) -> None:
    """With the field it follows from and how to keep the plan's dtype; a plan with fp32 masters and no adapter hears of no upcast."""
    said = {w.code: w for w in planned(framework, strategy, RECIPES[recipe]).plan.warnings}
    assert said[code].severity == "info"
    assert said[code].field.startswith("training.")
    quiet = {w.code for w in planned(framework, strategy, {"precision": "fp32"}).plan.warnings}
    assert not {"mixed_precision_upcasts", "adapter_upcast", "accelerate_reduces_in_16_bit", "fp8_needs_library"} & quiet


def test_the_fp8_warning_says_what_the_scripts_do() -> None:
    """They convert; the configuration files cannot."""
    given = planned("fsdp2", "fsdp_full", {"precision": "fp8"})
    message = next(w.message for w in given.plan.warnings if w.code == "fp8_needs_library")
    assert "scripts convert" in message
    assert "convert_to_float8_training(" in {file.filename: file.text for file in given.plan.files}["fsdp2_train.py"]
