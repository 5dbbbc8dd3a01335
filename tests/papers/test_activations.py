"""Activation bytes counted on the saved tensors of transformers models, and whole steps of them executed on fake tensors.

The counts and the peaks are of torch 2.13 and transformers 5.24, operation by operation, without an allocator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.domain.memory.block_backward import operations
from app.domain.memory.logits import chunk_rows
from app.domain.memory.saved import Compute, first_block_unsaved, saved_per_token
from app.domain.model.architecture import Architecture
from app.domain.plan import GpuMemory
from app.domain.recipe.adapter import Adapter
from tests.planning import plan_of, question_of

MIB = 2**20


def decoder(kind: str, sizes: tuple[int, int, int, int, int], **more: Any) -> dict[str, Any]:
    """A config of ``sizes``: layers, hidden, heads, key/value heads, feed-forward."""
    layers, hidden, heads, kv_heads, ffn = sizes
    return {
        "model_type": kind, "architectures": [f"{kind.capitalize()}ForCausalLM"], "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": ffn,
    } | more  # fmt: skip


LLAMA_7B = decoder("llama", (6, 4096, 32, 32, 11008), vocab_size=32000, tie_word_embeddings=False)
LLAMA_8B = decoder("llama", (6, 4096, 32, 8, 14336), vocab_size=128256, tie_word_embeddings=False)
TINY_LLAMA = decoder("llama", (6, 2048, 32, 4, 5632), vocab_size=32000, tie_word_embeddings=False)
GEMMA = decoder("gemma2", (6, 2304, 8, 4, 9216), vocab_size=256000, head_dim=256, tie_word_embeddings=True)
PHI3 = decoder("phi3", (32, 3072, 32, 32, 8192), vocab_size=32064)
QWEN3 = decoder("qwen3", (36, 4096, 32, 8, 12288), vocab_size=151936, head_dim=128)
PYTHIA = {
    "model_type": "gpt_neox", "num_hidden_layers": 6, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 16384,
    "vocab_size": 50432, "tie_word_embeddings": False, "architectures": ["GPTNeoXForCausalLM"],
}  # fmt: skip
BF16 = Compute(bytes=2, autocast=False, kernel="flash", seq_len=2048, adapter=None, tiled_mlp=False)
AUTOCAST, EAGER = replace(BF16, autocast=True), replace(BF16, kernel="eager")
FP32 = replace(BF16, bytes=4, kernel="sdpa")


def architecture(config: dict[str, Any]) -> Architecture:
    """The model a config describes."""
    return question_of({"hf_config": config}, {"seq_len": 2048}).setup.model


@pytest.mark.parametrize(
    ("config", "compute", "expected"),
    [
        (LLAMA_7B, BF16, 16 * 4096 + 8 * 4096 + 8 * 11008 + 4 * 32),
        (LLAMA_7B, AUTOCAST, 26 * 4096 + 8 * 4096 + 8 * 11008 + 4 * 32),
        (PHI3, BF16, 16 * 3072 + 14 * 3072 + 8 * 8192 + 4 * 32),
        (PHI3, AUTOCAST, 20 * 3072 + 14 * 3072 + 8 * 8192 + 4 * 32),
        (PYTHIA, BF16, 20 * 4096 + 4 * 16384 + 4 * 32),
        (PYTHIA, AUTOCAST, 22 * 4096 + 4 * 16384 + 4 * 32),
        (PYTHIA, EAGER, 18 * 4096 + 4 * 16384 + 6 * 32 * 2048),
        (PYTHIA, FP32, 36 * 4096 + 8 * 16384 + 4 * 32),
        (GEMMA, EAGER, 36 * 2304 + 8 * 2048 + 8 * 9216 + 8 * 8 * 2048),
    ],
)
def test_saved_bytes_of_one_block(config: dict[str, Any], compute: Compute, expected: int) -> None:
    """What forward keeps of one block is the counted coefficient for every family and precision, to the byte."""
    model = architecture(config)
    assert saved_per_token(model.main_block, replace(compute, numerics=model.numerics)).none == expected


def test_query_and_key_norms_are_kept() -> None:
    """Qwen3's norms over queries and keys keep a fp32 copy and the normalised tensor of both: 6 bytes an element, 4 where frozen."""
    block = architecture(QWEN3).main_block
    plain = replace(block, weights=tuple(w for w in block.weights if w.name not in ("q_norm", "k_norm")))
    lora = replace(BF16, adapter=Adapter(kind="lora"))
    for compute, each in ((BF16, 6), (lora, 4), (FP32, 8)):
        assert saved_per_token(block, compute).none - saved_per_token(plain, compute).none == each * (32 + 8) * 128


def test_first_block_of_an_adapted_model_keeps_less() -> None:
    """Below the first block lies a frozen embedding: its norm keeps no input (4h), and dropout on it no masks for q, k and v (3h)."""
    block = architecture(LLAMA_7B).main_block
    lora = replace(BF16, adapter=Adapter(kind="lora", dropout=0.05))
    assert first_block_unsaved(block, lora) == 7 * 4096
    assert first_block_unsaved(block, BF16) == 0


def test_operations_of_a_block_in_backward() -> None:
    """Feed-forward, its norm, the softmax and the input norm hold what was counted, with the gradients made until then."""
    block = architecture(LLAMA_7B).main_block
    h, f, a, scores = 4096, 11008, 32, 32 * 2048
    feed_forward, norm, _, _, last = operations(block, BF16)
    assert feed_forward.bytes_per_token == (16 + 8) * h + 8 * f + 4 * a + 4 * f + 2 * h
    assert norm.bytes_per_token == (8 + 8) * h + 4 * a + 26 * h
    assert last.bytes_per_token == 26 * h
    assert 3 * feed_forward.weights_frac == pytest.approx(norm.weights_frac) and last.weights_frac == 1
    softmax = operations(block, EAGER)[2]
    assert softmax.bytes_per_token == 12 * scores + 16 * h
    assert softmax.weights_frac * sum(w.numel for w in block.weights) == pytest.approx(3 * h * f + h * h)


def test_chunks_of_a_fused_loss() -> None:
    """Chunks hold as many rows as keep them near the input's size, a power of two."""
    assert chunk_rows(8192, 128256, 4096) == 256
    assert chunk_rows(2048, 32000, 768) == 64


FSDP = {"framework": "fsdp2", "strategy": "fsdp_full"}
NO_RESHARD = {"framework": "fsdp2", "strategy": "fsdp_grad_op"}
ONE = {"framework": "ddp", "strategy": "ddp"}
STEPS = [
    (LLAMA_7B, {"attention": "eager", "activation_checkpointing": "full"}, FSDP, 8, 7116931072),
    (LLAMA_7B, {"activation_checkpointing": "none"}, NO_RESHARD, 8, 8587680256),
    (LLAMA_7B, {"activation_checkpointing": "full", "seq_len": 8192}, FSDP, 8, 7209403392),
    (LLAMA_8B, {"activation_checkpointing": "none", "seq_len": 8192, "fused_loss": True}, FSDP, 8, 18455237632),
    (GEMMA, {"attention": "eager", "activation_checkpointing": "none", "seq_len": 512, "master_weights": False}, ONE, 1, 10815484416),
    (
        PYTHIA,
        {"attention": "eager", "activation_checkpointing": "none", "master_weights": False, "optimizer_implementation": "fused"},
        ONE,
        1,
        17608155136,
    ),
    (TINY_LLAMA, {"attention": "eager", "activation_checkpointing": "none"}, ONE, 1, 12525701120),
    (LLAMA_7B, {"activation_checkpointing": "none", "master_weights": False, "adapter": {"kind": "lora"}}, ONE, 1, 6693322752),
    (LLAMA_7B, {"activation_checkpointing": "none", "seq_len": 512, "master_weights": False, "optimizer": "sgd"}, ONE, 1, 5909997568),
]
"""Training steps of six blocks and the largest sum of their live tensors, bytes."""


@pytest.mark.parametrize(("config", "training", "pins", "gpus", "peak"), STEPS)
def test_peaks_of_executed_steps(config: dict[str, Any], training: dict[str, Any], pins: dict[str, str], gpus: int, peak: int) -> None:
    """The peak of live tensors is within half a per cent of the executed step's, whichever moment it falls in."""
    assert executed(config, training, pins, gpus).peak_allocated_bytes == pytest.approx(peak, rel=0.002)


def executed(config: dict[str, Any], training: dict[str, Any], pins: dict[str, str], gpus: int) -> GpuMemory:
    """The planner's memory for one of the executed steps."""
    recipe = {"seq_len": 2048, "micro_batch": 1, "grad_accum": 1, "attention": "sdpa", "activation_offload": False} | training
    if "optimizer" not in recipe:
        recipe["optimizer_implementation"] = recipe.get("optimizer_implementation", "foreach")
    pins = pins | {"offload_optimizer": "none", "offload_parameters": "none"}
    return plan_of({"hf_config": config}, recipe, gpus=gpus, constraints=pins).recommended.gpu


def test_one_rank_keeps_cast_copies_under_fsdp2() -> None:
    """On a single GPU FSDP2 still computes on 16-bit copies; at the end of backward the root's are there with both gradients."""
    gpu = executed(LLAMA_7B, {"activation_checkpointing": "full"}, FSDP, 1)
    end = next(m.allocated_bytes for m in gpu.moments if m.name == "end of backward")
    assert end / MIB == pytest.approx(23529, rel=0.001)


def test_a_tied_table_has_three_gradients_at_the_end() -> None:
    """The head's and the lookup's gradients are added into a third, which an untied head spares."""
    training = {"activation_checkpointing": "full", "attention": "eager", "seq_len": 512, "fused_loss": True}
    table = 256000 * 2304 * 2
    for pins, gpus in ((FSDP, 8), (ONE, 1)):
        tied = executed(GEMMA, training | {"master_weights": False}, pins, gpus)
        end = next(m for m in tied.moments if m.name == "end of backward")
        sums = sum(t.value for t in end.terms if t.name in ("unsharded gradients", "gradients of the embedding"))
        assert sums / table == pytest.approx(3 if gpus > 1 else 2, rel=0.001)
