"""Checkpoints go on at another number of ranks, and come out as one set of weights that other tools read.

All trained from the same saved weights, so the exports of every way of sharding are compared with DDP's.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.emit.jobs import make_job
from tests.verify.agreement import assert_same
from tests.verify.harness import Step, finetune, forget_steps_after, run_command, run_ranks

DDP: dict[str, Any] = {"framework": "ddp", "precision": "fp32"}
FSDP2: dict[str, Any] = {"framework": "fsdp2", "precision": "fp32"}
DEEPSPEED: dict[str, Any] = {"framework": "deepspeed", "precision": "fp32", "optimizer_implementation": "foreach"}
WEIGHT_DIFFERENCE = 2e-5
"""Weights have moved by 1e-2 a step; AdamW's division enlarges the rounding of a sum."""

Weights = Callable[..., Path]


class Saved:
    """Five steps on two ranks: a checkpoint after the second and the last, and an export."""

    def __init__(self, folder: Path, source: Path, changes: dict[str, Any]) -> None:
        self.folder, self.source = folder, source
        self.checkpoints, self.exported = folder / "saved", folder / "exported"
        save, export = ["--save-dir", str(self.checkpoints)], ["--export", str(self.exported)]
        deepspeed = changes["framework"] == "deepspeed"
        extra = [*save, "--save-every", "2", *(export if deepspeed else [])]
        self.steps: list[Step] = finetune(make_job(**changes), folder, ranks=2, source=source, extra=extra)
        if not deepspeed:  # torch's checkpoints come out afterwards, in one process
            script = next(folder.glob("*_train.py"))
            run_command([sys.executable, str(script), "--model", str(source), *save, *export], folder)

    def again(self, ranks: int, flag: str, **changes: Any) -> list[Step]:
        """Steps 3 to 5, from a copy of what was saved after step 2."""
        folder = self.folder / f"again-{ranks}-{flag}-{changes.get('strategy')}"
        shutil.copytree(self.checkpoints, folder / "saved")
        if flag == "--resume":
            forget_steps_after(folder / "saved", 2)
        extra = ["--save-dir", str(folder / "saved"), flag]
        return finetune(make_job(**changes), folder, ranks=ranks, source=self.source, extra=extra)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, weights: Weights) -> Callable[..., Saved]:
    """``saved(**settings)``, trained once for equal settings."""
    known: dict[str, Saved] = {}

    def make(**changes: Any) -> Saved:
        key = repr(sorted(changes.items()))
        if key not in known:
            known[key] = Saved(tmp_path_factory.mktemp("saved"), weights(), changes)
        return known[key]

    return make


def difference(one: Path, other: Path, folder: Path) -> dict[str, Any]:
    """Largest difference between two sets of weights of equal names."""
    script = Path(__file__).parent / "compare_weights.py"
    answer: dict[str, Any] = json.loads(run_ranks(script, folder, ranks=1, arguments=[str(one), str(other)]).splitlines()[-1])
    return answer


def consolidated(run: Saved) -> Path:
    """A checkpoint of DeepSpeed's as safetensors, by the script it leaves beside it."""
    script, out = run.checkpoints / "zero_to_fp32.py", run.folder / "consolidated"
    run_command([sys.executable, str(script), str(run.checkpoints), str(out), "--safe_serialization"], run.folder)
    return out


@pytest.mark.files("ds_train.py, ds_config.json", "deepspeed", "torch")
@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_zero_goes_on_at_another_number_of_ranks(saved: Callable[..., Saved], strategy: str) -> None:
    """Through ds_to_universal and --universal; stage 3 from two ranks to one and to four, the others to one."""
    run = saved(**DEEPSPEED, strategy=strategy)
    tag = run.checkpoints / "step-00000002"
    convert = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", str(tag), "--inject_missing_state"]
    run_command([*convert, "--output_folder", str(run.checkpoints / "universal")], run.folder)
    for ranks in (1, 4) if strategy == "zero3" else (1,):
        assert_same(run.again(ranks, "--universal", **DEEPSPEED, strategy=strategy), run.steps[2:])


@pytest.mark.files("fsdp2_train.py, ddp_train.py", "torch", "transformers")
@pytest.mark.parametrize(("changes", "ranks"), [(DDP, 1), (FSDP2, 1)])
def test_torch_checkpoints_go_on_at_another_number_of_ranks(saved: Callable[..., Saved], changes: dict[str, Any], ranks: int) -> None:
    """DDP and FSDP2, from two ranks to one."""
    run = saved(**changes)
    assert_same(run.again(ranks, "--resume", **changes), run.steps[2:])


@pytest.mark.files("fsdp2_train.py, ds_train.py, ds_config.json", "deepspeed", "torch", "transformers")
@pytest.mark.parametrize(
    "way", [FSDP2, {**DEEPSPEED, "strategy": "zero2"}, {**DEEPSPEED, "strategy": "zero3"}], ids=["fsdp2", "zero2", "zero3"]
)
def test_exported_weights_are_those_of_ddp(saved: Callable[..., Saved], way: dict[str, Any]) -> None:
    """from_pretrained finds every weight in the folder, equal to DDP's and not to those training started from."""
    run, reference = saved(**way), saved(**DDP)
    found = difference(run.exported, reference.exported, run.folder)
    assert found["difference"] <= WEIGHT_DIFFERENCE
    assert difference(run.exported, run.source, run.folder)["difference"] > 1e-3


@pytest.mark.files("ds_train.py, ds_config.json", "deepspeed", "torch")
@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_zero_to_fp32_gives_the_trained_weights(saved: Callable[..., Saved], strategy: str) -> None:
    """The script DeepSpeed leaves beside its checkpoint consolidates the last step to what was exported."""
    run = saved(**DEEPSPEED, strategy=strategy)
    assert difference(consolidated(run), run.exported, run.folder)["difference"] == 0.0


@pytest.mark.files("fsdp2_train.py, ddp_train.py", "torch")
def test_a_sharded_checkpoint_becomes_one_file(saved: Callable[..., Saved]) -> None:
    """torch's own converter, as the script's comment says; the file holds what was exported."""
    run = saved(**FSDP2)
    command = [sys.executable, "-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch"]
    run_command([*command, str(run.checkpoints / "step-00000005"), str(run.folder / "whole.pt")], run.folder)
    assert difference(run.folder / "whole.pt", run.exported, run.folder)["difference"] == 0.0


@pytest.mark.files("fsdp2_train.py, ds_train.py, ds_config.json", "deepspeed", "torch", "transformers")
@pytest.mark.parametrize(
    "way", [FSDP2, {**DEEPSPEED, "strategy": "zero2"}, {**DEEPSPEED, "strategy": "zero3"}], ids=["fsdp2", "zero2", "zero3"]
)
def test_checkpointed_layers_keep_their_names(saved: Callable[..., Saved], way: dict[str, Any]) -> None:
    """Activation checkpointing and a fused loss wrap layers; the exported names are still the model's."""
    run = saved(**way, activation_checkpointing="full", fused_loss=True)
    assert difference(run.exported, saved(**DDP).exported, run.folder)["difference"] <= WEIGHT_DIFFERENCE
    if way is not FSDP2:
        assert difference(consolidated(run), run.exported, run.folder)["difference"] == 0.0


@pytest.mark.files("ds_train.py, ds_config.json", "deepspeed", "torch", "transformers")
def test_a_16_bit_export_is_gathered(saved: Callable[..., Saved]) -> None:
    """At stage 3 in bf16 the folder holds whole weights in bf16."""
    run = saved(**{**DEEPSPEED, "precision": "bf16"}, strategy="zero3")
    found = difference(run.exported, saved(**DDP).exported, run.folder)
    assert found["dtype"] == "torch.bfloat16"
    assert 0 < found["difference"] < 5e-2


@pytest.mark.files("fsdp2_train.py, ds_train.py, ds_config.json", "deepspeed", "torch", "transformers", "peft")
@pytest.mark.parametrize("way", [FSDP2, {**DEEPSPEED, "strategy": "zero3"}], ids=["fsdp2", "zero3"])
def test_exported_adapters_are_those_of_ddp(saved: Callable[..., Saved], way: dict[str, Any]) -> None:
    """Of a LoRA run only the adapters are written, in PEFT's format."""
    lora = {"job": {"adapter": {"kind": "lora", "rank": 4, "targets": "all-linear"}}}
    run, reference = saved(**way, **lora), saved(**DDP, **lora)
    found = difference(run.exported, reference.exported, run.folder)
    assert found["difference"] <= WEIGHT_DIFFERENCE
    assert found["tensors"] == 2 * 7 * 2  # two matrices beside each of seven in two layers
    assert {path.name for path in run.exported.glob("adapter_*")} == {"adapter_config.json", "adapter_model.safetensors"}
