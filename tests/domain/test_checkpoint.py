"""Bytes of a save, against files that torch 2.13 and DeepSpeed 0.19.8 wrote for this very model on one rank.

The model has 106,816 weights in 21 tensors (hidden 64, ffn 128, two layers, 256 tokens); its table is 256 × 64.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.domain.checkpoint.plan import checkpoint_plan
from app.domain.checkpoint.result import CheckpointPlan
from app.domain.checkpoint.tensors import Tensors, largest_shard_frac, tensor_count, trained_tensors
from app.domain.model.architecture import Attention
from app.domain.model.cache import cache_elements
from app.domain.model.parameters import total_params
from app.domain.recipe.adapter import Adapter
from app.domain.recipe.recipe import Recipe
from tests.emit.jobs import make_settings, tiny_llama

PARAMS, TENSORS, TABLE = 106_816, 21, 256 * 64
GENERATOR = 16
ALONE: dict[str, Any] = {"world_size": 1, "nodes": 1, "gpus_per_node": 1, "dp_shard": 1, "shard_group_size": 1}


def saved(recipe: dict[str, Any] | None = None, *, tied: bool = False, **settings: Any) -> CheckpointPlan:
    """The checkpoint plan of the tiny model on one rank unless told otherwise."""
    chosen = make_settings(**{"precision": (recipe or {}).get("precision", "bf16"), **ALONE, **settings})
    return checkpoint_plan(tiny_llama(tied=tied), Recipe(seq_len=64, **(recipe or {})), chosen)


def bytes_of(plan: CheckpointPlan, name: str) -> int:
    """Bytes of one term; 0 where the plan has none of that name."""
    return sum(int(t.value) for t in plan.terms if t.name == name)


def test_the_model_is_the_one_the_files_were_written_for() -> None:
    """Otherwise the figures below would be of something else."""
    assert total_params(tiny_llama()) == PARAMS
    assert tensor_count(trained_tensors(tiny_llama(), Recipe(seq_len=64))) == TENSORS


@pytest.mark.parametrize("framework", ["fsdp2", "ddp"])
def test_torch_writes_weights_moments_and_counters(framework: str) -> None:
    """427,264 of weights, twice that of moments, 84 of counters: what .metadata of a real save adds up to."""
    plan = saved(framework=framework)
    assert bytes_of(plan, "weights") == 427_264
    assert bytes_of(plan, "optimizer states") == 854_528
    assert bytes_of(plan, "step counters") == 84
    assert plan.per_save_bytes == 427_264 + 854_528 + 84 + GENERATOR


def test_torch_writes_a_tied_table_twice() -> None:
    """The state dict has it under two names: 427,264 bytes for 90,432 weights; its moments exist once."""
    plan = saved(framework="fsdp2", tied=True)
    assert bytes_of(plan, "weights") + bytes_of(plan, "tied table under its second name") == 427_264
    assert bytes_of(plan, "optimizer states") == 723_456
    assert bytes_of(plan, "step counters") == 80


@pytest.mark.parametrize(
    ("optimizer", "moments", "counters"), [("sgd", 0, 0), ("sgd_momentum", 427_264, 0), ("adafactor", 6_144 + 4_608 + 1_280, 84)]
)
def test_torch_writes_what_the_optimizer_keeps(optimizer: str, moments: int, counters: int) -> None:
    """Nothing, one momentum, or Adafactor's rows, columns and vectors."""
    plan = saved({"optimizer": optimizer}, framework="fsdp2", optimizer=optimizer)
    assert (bytes_of(plan, "optimizer states"), bytes_of(plan, "step counters")) == (moments, counters)


@pytest.mark.parametrize(
    ("strategy", "recipe", "module", "optimizer"),
    [
        ("ddp", {}, 213_632, 1_281_792),
        ("ddp", {"precision": "fp32"}, 427_264, 854_528),
        ("zero1", {}, 213_632, 1_281_792),
        ("zero2", {}, 213_632, 1_281_792),
        ("zero2", {"precision": "fp32"}, 427_264, 1_281_792),
        ("zero2", {"master_weights": False}, 213_632, 640_896),
        ("zero3", {}, 0, 1_281_792),
        ("zero3", {"master_weights": False}, 0, 640_896),
    ],
)
def test_deepspeed_writes_modules_and_partitions(strategy: str, recipe: dict[str, Any], module: int, optimizer: int) -> None:
    """Sizes of the tensors in mp_rank_00_model_states.pt and in the optimizer's files, less one counter a group."""
    plan = saved(recipe, framework="deepspeed", strategy=strategy)
    assert bytes_of(plan, "16-bit weights") == module
    assert bytes_of(plan, "masters and optimizer states") == optimizer
    assert plan.per_save_bytes == module + optimizer


def test_the_files_add_up_and_every_rank_has_its_own() -> None:
    """Two nodes of four: eight optimizer files, one module at stage 2 and eight without trained weights at stage 3."""
    world = {"world_size": 8, "nodes": 2, "gpus_per_node": 4, "dp_shard": 8, "shard_group_size": 8}
    for strategy, modules in (("zero2", 1), ("zero3", 8)):
        plan = saved(framework="deepspeed", strategy=strategy, **world)
        assert [f.count for f in plan.files] == [modules, 8, 3]
        assert sum(f.bytes for f in plan.files) == plan.per_save_bytes
        assert plan.per_rank_bytes == (213_632 if modules == 1 else 0) + 1_281_792 // 8
    torch_native = saved(framework="fsdp2", **world)
    assert [f.count for f in torch_native.files] == [8, 1, 1]
    assert sum(f.bytes for f in torch_native.files) == torch_native.per_save_bytes


def test_the_fullest_rank_holds_the_first_rows() -> None:
    """65 rows over 64 ranks: two on the first; eight experts over 64 ranks are cut along the next dim instead."""
    assert largest_shard_frac([Tensors((65, 10), 1)], 64) == pytest.approx(20 / 650)
    assert largest_shard_frac([Tensors((8, 128, 4), 1)], 64) == pytest.approx(1 / 8)
    assert largest_shard_frac([Tensors((8, 128, 4), 1, expert=True)], 64) == pytest.approx(1 / 64)


def test_a_replica_writes_nothing_again() -> None:
    """HSDP and DDP write one copy in all, spread over every rank that holds it."""
    world = {"world_size": 8, "nodes": 2, "gpus_per_node": 4}
    whole = saved(framework="ddp", dp_shard=8, **world)
    hybrid = saved(framework="fsdp2", strategy="hsdp", dp_replicate=2, dp_shard=4, shard_group_size=4, **world)
    assert whole.per_save_bytes == hybrid.per_save_bytes == 1_281_876 + 8 * GENERATOR
    assert whole.per_rank_bytes == -(-whole.per_save_bytes // 8)


def test_an_adapter_saves_without_its_base() -> None:
    """Rank 8 on q and v of two layers: 8 · (64 + 64 + 64 + 32) · 2 = 3,584 weights, however large the base is."""
    recipe = {"adapter": Adapter(kind="lora", rank=8, targets=("q_proj", "v_proj"))}
    plan = saved(recipe, framework="fsdp2")
    assert bytes_of(plan, "weights") == 4 * 3_584
    assert bytes_of(plan, "step counters") == 4 * 8
    zero = saved(recipe, framework="deepspeed", strategy="zero2")
    assert bytes_of(zero, "frozen weights") == 0
    assert zero.per_save_bytes == (2 + 12) * 3_584
    assert any("exclude_frozen_parameters" in note for note in zero.notes)


def test_a_partly_frozen_model_is_saved_twice_at_stage_two() -> None:
    """In the module and again as fragments; stage 1 writes no fragments, torch writes what is trained."""
    recipe = {"trainable_params": 6_816}
    frozen = PARAMS - 6_816
    for strategy, copies in (("zero1", 1), ("zero2", 2), ("zero3", 1)):
        assert bytes_of(saved(recipe, framework="deepspeed", strategy=strategy), "frozen weights") == 2 * frozen * copies
    assert bytes_of(saved(recipe, framework="fsdp2"), "weights") == 4 * 6_816


def test_only_zero_needs_a_conversion_to_other_ranks() -> None:
    """Torch's checkpoints and stage 0 load anywhere; stages 1 and 2 lack a state that the converter has to add."""
    assert saved(framework="fsdp2").resume.commands == ()
    assert saved(framework="deepspeed", strategy="ddp").resume.commands == ()
    two, three = (saved(framework="deepspeed", strategy=s).resume for s in ("zero2", "zero3"))
    assert two.commands[0].endswith("--inject_missing_state")
    assert "--inject_missing_state" not in three.commands[0]
    assert two.disk_bytes == 213_632 + 1_281_792
    assert three.disk_bytes == 2 * 1_281_792


def test_host_memory_of_the_exports() -> None:
    """Stage 2 joins all masters in memory; stage 3 goes file by file; torch's converter reads optimizer states too."""
    merged = saved(framework="deepspeed", strategy="zero2").exports[0]
    assert int(merged.host.value) == 4 * PARAMS
    lazy, gathered = saved(framework="deepspeed", strategy="zero3").exports
    assert int(lazy.host.value) == 4 * PARAMS + 4 * TABLE
    assert (int(gathered.host.value), gathered.output_bytes) == (2 * PARAMS, 2 * PARAMS)
    folder, whole = saved(framework="fsdp2").exports
    assert (int(folder.host.value), folder.output_bytes) == (4 * PARAMS + 4 * TABLE, 2 * PARAMS)
    assert int(whole.host.value) == saved(framework="fsdp2").per_save_bytes
    assert saved({"precision": "fp32"}, framework="ddp").exports[0].output_bytes == 4 * PARAMS


def test_inference_holds_sixteen_bits_and_a_cache() -> None:
    """Two layers of two key-value heads of 16: 2 · 2 · 32 elements a token."""
    served = saved(framework="fsdp2").inference
    assert int(served.weights.value) == 2 * PARAMS
    assert served.cache_per_token is not None
    assert int(served.cache_per_token.value) == 2 * 2 * 2 * 32
    model = tiny_llama()
    latent = Attention(num_heads=4, num_kv_heads=4, head_dim=16, v_head_dim=16, kind="latent", latent_dim=24)
    stack = replace(model.stacks[0], block=replace(model.main_block, attention=latent))
    assert cache_elements(replace(model, stacks=(stack,))) == 2 * 24
    assert cache_elements(replace(model, kind="encoder")) == 0


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3"])
def test_every_figure_can_be_traced(strategy: str) -> None:
    """Each has its numbers put in and a source."""
    plan = saved(framework="deepspeed", strategy=strategy)
    for figure in (*plan.terms, *(e.host for e in plan.exports), plan.inference.weights):
        assert any(ch.isdigit() for ch in figure.formula)
        assert figure.source


def test_divided_states_are_one_file_of_rank_0() -> None:
    """ZeroRedundancyOptimizer's states come to one rank; the weights are written as DDP's are."""
    plan = saved(framework="ddp", strategy="zero1", world_size=2, dp_shard=2, gpus_per_node=2, shard_group_size=2)
    files = {file.name: file.bytes for file in plan.files}
    assert files["optimizer-0.pt"] == 854_528 + 84
    assert files["__{rank}_0.distcp"] == 427_264 + 2 * GENERATOR
    assert sum(files.values()) == plan.per_save_bytes
    assert any("rank 0" in note for note in plan.notes)


def test_parts_of_layers_need_another_way_out() -> None:
    """zero_to_fp32.py counts files and stops where tensor ranks have their own; pipelines and experts go through the converter."""
    world = {"world_size": 8, "nodes": 2, "gpus_per_node": 4}
    split = saved(framework="deepspeed", strategy="zero2", tensor_parallel=2, dp_shard=4, shard_group_size=4, **world)
    assert [e.commands[0].partition("(")[0] for e in split.exports] == ["weights = engine._consolidated_16bit_state_dict"]
    assert [f.count for f in split.files] == [2, 8, 3]
    piped = saved(framework="deepspeed", strategy="zero1", pipeline_parallel=2, dp_shard=4, shard_group_size=4, **world)
    assert "ds_to_universal" in piped.exports[0].commands[0]
    assert int(piped.exports[0].host.value) == 4 * 1_281_792 // 8
    whole = saved(framework="deepspeed", strategy="zero3", tensor_parallel=2, dp_shard=4, shard_group_size=4, **world)
    assert "save_16bit_model" in whole.exports[0].commands[0]


def test_a_plan_without_a_script_names_none() -> None:
    """What is said then holds for a trainer of one's own."""
    scripted, own = saved(framework="fsdp2"), saved(framework="fsdp2", sequence_parallel=2)
    assert "fsdp2_train.py" in scripted.written_by
    for text in (own.written_by, own.resume.same, own.resume.other, *own.notes, *(c for e in own.exports for c in e.commands)):
        assert "train.py" not in text
        assert "--resume" not in text
    assert "state.json" not in {f.name for f in own.files}
    zero = saved(framework="deepspeed", strategy="zero3", sequence_parallel=2)
    assert "ds_train.py" not in zero.written_by
    assert "engine.load_checkpoint" in zero.resume.same


def test_muon_keeps_its_momenta_in_sixteen_bits_under_deepspeed() -> None:
    """Matrices inside the blocks have one momentum of 2 bytes there and of 4 elsewhere; tables and vectors have Adam's two of 4."""
    matrices = 2 * (64 * 64 * 2 + 32 * 64 * 2 + 3 * 64 * 128)
    others = 8 * (PARAMS - matrices)
    recipe = {"optimizer": "muon"}
    assert bytes_of(saved(recipe, framework="fsdp2", optimizer="muon"), "optimizer states") == 4 * matrices + others
    zero = saved(recipe, framework="deepspeed", strategy="zero2", optimizer="muon")
    assert bytes_of(zero, "masters and optimizer states") == 4 * PARAMS + 2 * matrices + others
