"""ZeRO++'s communication table: what crosses a node's border per step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.domain.traffic.volumes import evaluate_traffic
from tests.planning import evaluate_request, one_row

NODES, LOCAL = 64, 8


@pytest.mark.parametrize(
    ("hpz", "qwz", "qgz", "crossing"),
    [(1, 0, 0, 3.0), (1, 1, 0, 2.0), (8, 0, 0, 2.0), (1, 0, 1, 2.25), (8, 1, 1, 0.75)],
)
def test_volume_that_leaves_the_node(hpz: int, qwz: int, qgz: int, crossing: float) -> None:
    """ZeRO-3 sends 3M across nodes; qwZ halves both gathers, hpZ removes one, qgZ leaves a quarter of the scatter: 0.75M with all three.

    Source: Wang et al., ZeRO++, table 1.
    """
    found = one_row(
        evaluate_request(
            {"shape": {"num_layers": 40, "hidden_size": 5120, "num_heads": 40, "ffn_hidden_size": 13824, "vocab_size": 32000}},
            {"seq_len": 2048, "micro_batch": 1, "grad_accum": 1, "activation_checkpointing": "full"},
            nodes=NODES,
            constraints={"framework": "deepspeed", "strategy": "zero3", "shard_group_size": hpz, "offload_optimizer": "none"},
        )
    )
    columns = replace(found.columns, qwz=np.array([qwz]), qgz=np.array([qgz]), reuse=np.array([0]), checkpointing=np.array([0]))
    traffic = evaluate_traffic(found.setup, found.numbers, columns, found.memory.share)
    model = 2.0 * found.numbers.total
    # A ring crosses each border once for the whole group; in the second hop of qgZ each of the node's GPUs sends its own part.
    border = sum(
        float(traffic.ledger.lines[flow.line].value[0]) * (LOCAL if "int4" in traffic.ledger.lines[flow.line].card.title else 1)
        for flow in traffic.flows
        if flow.spans[0]
    )
    assert border / model == pytest.approx(crossing, rel=0.03)
