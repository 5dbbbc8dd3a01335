"""Encoders and encoder-decoders train on their own objectives, alike on both scripts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.emit.jobs import tiny_llama
from tests.verify.agreement import assert_same
from tests.verify.conftest import Trainer

pytestmark = pytest.mark.files("fsdp2_train.py, ddp_train.py", "torch", "transformers")

BERT = {
    "model_type": "bert",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
T5 = {
    "model_type": "t5",
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "vocab_size": 256,
    "dropout_rate": 0.0,
}


@pytest.mark.parametrize(("kind", "config"), [("encoder", BERT), ("encoder_decoder", T5)])
def test_other_objectives_agree(trained: Trainer, kind: Any, config: dict[str, Any]) -> None:
    """Masked tokens and shifted decoder inputs, with the classes of the layers asked of the model."""
    llama = tiny_llama()
    block = replace(llama.main_block, class_name="")
    model = replace(llama, kind=kind, stacks=(replace(llama.stacks[0], block=block),))
    arguments: dict[str, Any] = {"precision": "fp32", "model": model, "job": {"hf_config": config}}
    assert_same(trained(2, framework="fsdp2", **arguments), trained(2, framework="ddp", **arguments))
