"""What each mechanism of tensor and pipeline parallelism adds to one GPU, against the formula it is taken from."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.memory.peak import flat_peaks
from tests.planning import evaluate_request, plan_of

LAYERS, HIDDEN, FFN, VOCAB, HEADS = 16, 4096, 14336, 128256, 32
SHAPE: dict[str, Any] = {
    "num_layers": LAYERS, "hidden_size": HIDDEN, "num_heads": HEADS, "num_kv_heads": HEADS, "ffn_hidden_size": FFN, "vocab_size": VOCAB,
}  # fmt: skip
PINS = {"offload_optimizer": "none", "offload_parameters": "none"}
TOKENS = 4096


def _evaluation(framework: str, strategy: str, *, tp: int = 1, pp: int = 1, **changes: Any) -> Any:
    training = {"seq_len": TOKENS, "micro_batch": 1, "grad_accum": 16, "activation_checkpointing": "none"} | changes.pop("training", {})
    constraints = PINS | {"framework": framework, "strategy": strategy, "tensor_parallel": tp, "pipeline_parallel": pp}
    return evaluate_request({"shape": SHAPE | changes}, training, gpus=8, nodes=2, constraints=constraints)


def _line(evaluation: Any, title: str) -> float:
    return sum(float(line.value[0]) for line in evaluation.memory.gpu.lines if line.card.title == title)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_norms_are_whole_without_sequence_parallelism(tp: int) -> None:
    """Korthikanti et al., equation 2, for Llama: under DeepSpeed the 16h of two norms stay whole, 8h + 8f + 4a divide by t."""
    found = _line(_evaluation("deepspeed", "zero1", tp=tp), "saved activations")
    assert found == pytest.approx(TOKENS * LAYERS * (16 * HIDDEN + (8 * HIDDEN + 8 * FFN + 4 * HEADS) / tp))


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_sequence_parallelism_splits_all_but_gathered_inputs(tp: int) -> None:
    """Under FSDP2 everything divides by t but the two inputs of 2h that torch saves as they were gathered."""
    found = _line(_evaluation("fsdp2", "fsdp_full", tp=tp), "saved activations")
    whole = 4 * HIDDEN if tp > 1 else 0
    assert found == pytest.approx(TOKENS * LAYERS * (whole + (24 * HIDDEN + 8 * FFN + 4 * HEADS - whole) / tp))


def test_checkpointed_inputs_are_whole_on_every_tensor_rank() -> None:
    """Full checkpointing keeps 2h a block whatever t without sequence parallelism, and 2h / t with it."""
    full = {"training": {"activation_checkpointing": "full"}}
    assert _line(_evaluation("deepspeed", "zero1", tp=8, **full), "saved activations") == TOKENS * LAYERS * 2 * HIDDEN
    assert _line(_evaluation("fsdp2", "fsdp_full", tp=8, **full), "saved activations") == TOKENS * LAYERS * 2 * HIDDEN / 8


@pytest.mark.parametrize(
    ("framework", "strategy", "ranks"), [("deepspeed", "zero1", 1), ("deepspeed", "zero3", 4), ("fsdp2", "fsdp_full", 4)]
)
def test_who_splits_the_logits(framework: str, strategy: str, ranks: int) -> None:
    """AutoTP hands the whole vocabulary to the loss; torchtitan's plan and Megatron's layers under ZeRO-3 keep it split."""
    assert _line(_evaluation(framework, strategy, tp=4), "logits and loss") == TOKENS * VOCAB * 12 / ranks


def test_head_input_is_gathered() -> None:
    """The head computes on the whole sequence: the other ranks' tokens are gathered and kept, 2h(1 - 1/t) each."""
    title = "head input gathered over tensor ranks"
    assert _line(_evaluation("fsdp2", "fsdp_full", tp=4), title) == TOKENS * HIDDEN * 2 * 3 / 4
    assert _line(_evaluation("deepspeed", "zero1", tp=4), title) == 0


def test_first_stage_binds_by_its_micro_batches() -> None:
    """Without checkpointing the first of four stages holds a whole model's activations, and the answer names it."""
    evaluation = _evaluation("deepspeed", "zero1", pp=4)
    per_block = 24 * HIDDEN + 8 * FFN + 4 * HEADS
    assert evaluation.memory.busiest.stage[0] == 0
    assert _line(evaluation, "saved activations") == pytest.approx(TOKENS * LAYERS / 4 * per_block * 4)
    assert _line(evaluation, "stage outputs awaiting their gradient") == TOKENS * HIDDEN * 2 * 4
    assert _line(evaluation, "logits and loss") == 0


def test_last_stage_binds_by_its_loss() -> None:
    """With full checkpointing and a large vocabulary the last stage binds: one micro-batch, the loss and its 16-bit logits."""
    evaluation = _evaluation("deepspeed", "zero1", pp=4, training={"activation_checkpointing": "full"})
    assert evaluation.memory.busiest.stage[0] == 3
    assert evaluation.memory.busiest.in_flight[0] == 1
    assert _line(evaluation, "logits and loss") == TOKENS * VOCAB * 12
    assert _line(evaluation, "stage outputs awaiting their gradient") == TOKENS * VOCAB * 2


def test_tied_table_is_on_both_ends() -> None:
    """The last stage of a tied model holds the table again: as many parameters as that of an untied one."""
    tied, untied = (
        _evaluation("deepspeed", "zero1", pp=4, tied_embeddings=t, training={"activation_checkpointing": "full"}) for t in (True, False)
    )
    assert tied.memory.busiest.stage[0] == untied.memory.busiest.stage[0] == 3
    assert _line(tied, "parameters") == pytest.approx(_line(untied, "parameters"), rel=1e-4)


def test_answer_names_the_rank_that_binds() -> None:
    """The summary says the stage, ``busiest_rank`` what it holds; without a pipeline all ranks are alike."""
    training = {"seq_len": TOKENS, "micro_batch": 1, "grad_accum": 16, "activation_checkpointing": "none"}
    pins = PINS | {"framework": "deepspeed", "strategy": "zero1"}
    piped = plan_of({"shape": SHAPE}, training, gpus=8, nodes=2, constraints=pins | {"pipeline_parallel": 4})
    assert piped.recommended.gpu.busiest_rank == "pipeline stage 1 of 4: 4 blocks and the embedding, 4 micro-batches in flight"
    assert "on pipeline stage 1 of 4" in piped.summary
    plain = plan_of({"shape": SHAPE}, training, gpus=8, nodes=2, constraints=pins)
    assert plain.recommended.gpu.busiest_rank == "all ranks are alike"
    assert "stage 1 of" not in plain.summary


def test_flat_step_buffers_do_not_reuse_activations() -> None:
    """Where a split model steps without ZeRO, reserved memory holds the largest activations and the flat copies side by side."""
    evaluation = _evaluation("deepspeed", "ddp", tp=4, pp=4)
    memory, step = evaluation.memory, _line(evaluation, "optimizer step buffers")
    assert step == 8 * memory.busiest.trainable[0]
    rest = max(memory.by_moment[:-1, 0])
    assert flat_peaks(memory.gpu)[0] == pytest.approx(rest + step)
    assert memory.reserved[0] >= rest + step


def test_pipeline_ranks_build_their_own_part() -> None:
    """A pipeline's rank loads its slice of its stage, a rank without one the whole model before it is split."""
    loads = [
        sum(
            float(line.value[0])
            for line in _evaluation("deepspeed", "zero1", tp=tp, pp=pp).memory.host.lines
            if line.card.title == "model while loading"
        )
        for tp, pp in ((1, 1), (4, 1), (4, 4))
    ]
    assert loads[0] == loads[1]
    assert loads[2] < loads[0] / 8
