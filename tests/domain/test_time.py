"""Traffic, overlap, offload and compute: what moves, what it costs, what it hides behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.catalog.links import host_memory_bytes_per_s, inter_node_link, intra_node_link, nvme_bytes_per_s
from app.domain.cluster.cluster import Pool
from app.domain.cluster.node import Node
from app.domain.search.evaluate import Evaluation
from app.domain.setup import Array, Columns
from app.domain.speed.compute import pipeline_wait_s
from app.domain.speed.products import operand_share
from app.domain.speed.step import evaluate_speed
from app.domain.traffic.collectives import Group
from app.domain.traffic.ideal import ideal_traffic_bytes
from app.domain.traffic.volumes import Traffic, evaluate_traffic, gathered_again
from tests.planning import evaluate_request, one_row

LLAMA: dict[str, Any] = {
    "shape": {"num_layers": 32, "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "ffn_hidden_size": 14336, "vocab_size": 128256}
}
TRAINING = {"seq_len": 4096, "micro_batch": 1, "grad_accum": 1, "activation_checkpointing": "full"}
ZERO3 = {"framework": "deepspeed", "strategy": "zero3", "offload_optimizer": "none", "offload_parameters": "none", "shard_group_size": 1}


def evaluated(strategy: str, framework: str = "deepspeed", training: dict[str, Any] | None = None, **rest: Any) -> Evaluation:
    """One strategy without offload; the first row of its table is the simplest candidate."""
    pins = {"framework": framework, "strategy": strategy, "offload_optimizer": "none", "offload_parameters": "none"}
    return evaluate_request(LLAMA, TRAINING | (training or {}), constraints=pins | rest.pop("constraints", {}), **rest)


def traffic_of(found: Evaluation, **columns: Array) -> tuple[Traffic, Columns]:
    """Traffic of the table's first row, with some of its columns changed."""
    one = replace(found.columns.take(np.array([0])), **{name: np.array([value]) for name, value in columns.items()})
    return evaluate_traffic(found.setup, found.numbers, one, found.memory.share), one


def sent(traffic: Traffic, name: str) -> float:
    """Bytes of all flows with this title in one step."""
    return sum(float(line.value[0]) for line in traffic.ledger.lines if line.card.title == name)


@pytest.mark.parametrize(
    ("reuse", "checkpointing", "gathers"),
    [(10**12, 0, 1.0), (10**12, 2, 1.0), (0, 0, 2.0), (0, 2, 2.0 + 32 * (218_112_000 - 14336 * 4096) / 8_030_261_248)],
)
def test_zero3_gathers_again_what_it_released(reuse: int, checkpointing: int, gathers: float) -> None:
    """One gather with P ≤ D/2, two with D = 0, and with checkpointing each block but its last matrix once more."""
    found = one_row(evaluated("zero3", constraints={"shard_group_size": 1}))
    traffic, columns = traffic_of(found, reuse=reuse, checkpointing=checkpointing)
    whole = float((found.memory.share.inside + found.memory.share.outside)[0])
    assert sent(traffic, "parameter all-gather") == pytest.approx(gathers * whole * 2 * 7 / 8, rel=1e-4)
    kept = gathered_again(found.setup, replace(columns, reuse=np.array([10**9])), found.memory.share)
    assert float(kept[0]) == pytest.approx(whole - 0.5e9, rel=1e-4)


def test_fsdp2_keeps_the_head_gathered() -> None:
    """Two gathers of everything but the head, whose backward comes first; one where nothing is resharded."""
    full, kept = (one_row(evaluated(s, "fsdp2")) for s in ("fsdp_full", "fsdp_grad_op"))
    whole = float((full.memory.share.inside + full.memory.share.outside)[0])
    head = float(full.memory.share.outside[0]) - full.numbers.embedding
    assert sent(traffic_of(full)[0], "parameter all-gather") == pytest.approx((2 * whole - head) * 2 * 7 / 8, rel=1e-6)
    assert sent(traffic_of(kept)[0], "parameter all-gather") == pytest.approx(whole * 2 * 7 / 8)


@pytest.mark.parametrize(("framework", "strategy", "gathers"), [("deepspeed", "zero3", 1), ("fsdp2", "fsdp_full", 2)])
def test_frozen_weights_are_gathered_but_never_reduced(framework: str, strategy: str, gathers: int) -> None:
    """LoRA moves the whole model for tiny gradients, and its factors with it."""
    found = one_row(evaluated(strategy, framework, training={"adapter": {"kind": "lora", "rank": 8}}))
    traffic, _ = traffic_of(found, reuse=10**12)
    lines = [line for line in traffic.ledger.lines if line.card.title == "parameter all-gather" and line.value[0]]
    factors = float(found.memory.share.trainable[0]) * 2 * 7 / 8
    assert max(float(line.value[0]) for line in lines) > 8e9
    assert sum(float(line.value[0]) for line in lines if line.value[0] <= factors * 1.001) == pytest.approx(gathers * factors)
    assert sent(traffic, "gradient reduce-scatter") < 0.1e9


def test_zero3_gathers_small_tensors_once_a_step() -> None:
    """Norms are below the persistence threshold: four micro-steps gather everything else four times."""
    once, four = (traffic_of(one_row(evaluated("zero3", training={"grad_accum": n})), reuse=10**12)[0] for n in (1, 4))
    norms = (2 * 32 + 1) * 4096 * 2 * 7 / 8
    assert sent(four, "parameter all-gather") == pytest.approx(4 * sent(once, "parameter all-gather") - 3 * norms, rel=1e-9)


def test_sequence_parallelism_reduces_in_the_dtype_the_file_names() -> None:
    """DeepSpeed would reduce in fp32 as soon as sequences are split; the file says otherwise, so bytes stay as they are."""
    plain, split = (one_row(evaluated("zero3", constraints={"sequence_parallel": s})) for s in (1, 2))
    whole, halves = (sent(traffic_of(f)[0], "gradient reduce-scatter") for f in (plain, split))
    assert halves == pytest.approx(whole)
    assert sent(traffic_of(split)[0], "sequence-parallel all-to-all") > 0


def test_muon_at_stage_3_sums_whole_gradients_and_gathers_matrices() -> None:
    """Twice the reduction's bytes, for all tensors a bucket holds, and gathers of gradients and momenta, in rounds of one matrix a rank."""
    plain, muon = (one_row(evaluated("zero3", training={"optimizer": name}, gpus=2)) for name in ("adamw", "muon"))
    scattered, (traffic, _) = sent(traffic_of(plain)[0], "gradient reduce-scatter"), traffic_of(muon)
    long = sent(traffic, "gradient reduce-scatter")
    assert long == pytest.approx(2 * 128256 * 4096 * 2 / 2)  # embedding and head are longer than a bucket
    assert sent(traffic, "gradient all-reduce") == pytest.approx(2 * (scattered - long))
    h, kv, ffn = 4096 * 4096, 1024 * 4096, 14336 * 4096
    # Two blocks of q, k, v, o, gate, up, down, two by two: (q, k), (v, o), (gate, up), (down, q), (k, v), (o, gate), (up, down).
    dealt = 16 * 2 * (h + h + ffn + ffn + kv + ffn + ffn)
    gathered = sent(traffic_of(muon, bucket=10**12)[0], "Muon's gradients and momenta gathered")
    assert gathered == pytest.approx(2 * (32 * (2 * h + 2 * kv + 3 * ffn) + dealt) * 2 / 2)


def test_hpz_gathers_across_nodes_once_a_step() -> None:
    """The first forward gathers over all ranks; backward and later micro-steps stay in the node."""
    found = one_row(evaluated("zero3", training={"grad_accum": 4}, nodes=4, constraints={"shard_group_size": 8}))
    traffic, _ = traffic_of(found)
    across = [
        float(f.seconds[0]) for f in traffic.flows if f.spans[0] and traffic.ledger.lines[f.line].card.title == "parameter all-gather"
    ]
    whole = float((found.memory.share.inside + found.memory.share.outside)[0])
    lines = [traffic.ledger.lines[f.line] for f in traffic.flows if f.spans[0]]
    assert [x for x in across if x] and len([x for x in across if x]) == 1
    assert next(float(x.value[0]) for x in lines if x.card.title == "parameter all-gather") == pytest.approx(whole * 2 * 31 / 32)


def test_hybrid_replicas_average_in_every_micro_step() -> None:
    """The emitted loop synchronises in each micro-step, and so do the replicas."""
    once, four = (
        one_row(evaluated("hsdp", "fsdp2", training={"grad_accum": n}, nodes=4, constraints={"shard_group_size": 8})) for n in (1, 4)
    )
    name = "gradient all-reduce across replicas"
    assert sent(traffic_of(four)[0], name) == pytest.approx(4 * sent(traffic_of(once)[0], name))


@pytest.mark.parametrize("framework", ["ddp", "deepspeed", "fsdp2"])
def test_exposed_time_is_between_nothing_and_the_flow(framework: str) -> None:
    """Whatever the candidate, a flow is never hidden twice over nor charged beyond its own time."""
    found = evaluate_request(LLAMA, {"seq_len": 2048, "global_batch": 256}, nodes=2, constraints={"framework": framework})
    for flow, exposed in zip(found.speed.traffic.flows, found.speed.exposed, strict=True):
        assert np.all(exposed >= 0)
        assert np.all(exposed <= flow.seconds * (1 + 1e-12))
    assert np.all(found.speed.offload_s >= 0)
    assert np.all(found.speed.offload_s <= found.speed.offload.total() * (1 + 1e-9))


def _with_links(found: Evaluation, factor: float) -> Evaluation:
    node = found.setup.pool.node
    near, far = (replace(link, bytes_per_s=link.bytes_per_s * factor, in_switch_bytes_per_s=link.in_switch_bytes_per_s * factor)
                 for link in (node.intra_node, node.inter_node))  # fmt: skip
    faster = replace(node, intra_node=near, inter_node=far, host_memory_bytes_per_s=node.host_memory_bytes_per_s * factor,
                     nvme_read_bytes_per_s=node.nvme_read_bytes_per_s * factor, nvme_write_bytes_per_s=node.nvme_write_bytes_per_s * factor,
                     gpu=replace(node.gpu, pcie_bytes_per_s=node.gpu.pcie_bytes_per_s * factor))  # fmt: skip
    return replace(found, setup=replace(found.setup, pool=Pool(node=faster, nodes=found.setup.pool.nodes)))


@pytest.mark.parametrize("framework", ["deepspeed", "fsdp2"])
def test_faster_links_never_make_a_step_slower(framework: str) -> None:
    """Over a whole table, offload and NVMe included."""
    found = evaluate_request(LLAMA, {"seq_len": 2048, "global_batch": 128}, nodes=2, constraints={"framework": framework})
    steps = []
    for factor in (0.25, 1.0, 4.0):
        changed = _with_links(found, factor)
        steps.append(evaluate_speed(changed.setup, found.numbers, found.columns, found.memory.share).step_s)
    assert np.all(steps[0] >= steps[1] - 1e-12)
    assert np.all(steps[1] >= steps[2] - 1e-12)


def test_more_ranks_never_send_fewer_bytes() -> None:
    """The textbook volumes of each strategy grow with the ranks, toward their limits."""
    for before, after in ((8, 16), (16, 256), (256, 1024)):
        small, large = ideal_traffic_bytes(7 * 10**9, before), ideal_traffic_bytes(7 * 10**9, after)
        assert all(large[name] >= small[name] for name in small)


@pytest.mark.parametrize("recipe", [{}, {"precision": "fp16"}, {"adapter": {"kind": "qlora"}}])
def test_larger_micro_batches_are_never_slower_per_token(recipe: dict[str, Any]) -> None:
    """On one device nothing grows faster than the tokens: fixed work is spread over more of them."""
    speeds = []
    for micro in (1, 2, 4, 8, 16):
        found = evaluate_request(LLAMA, TRAINING | recipe | {"micro_batch": micro}, gpus=1, constraints={"framework": "ddp"})
        speeds.append(float(found.tokens_per_s[0]))
    assert speeds == sorted(speeds)


def test_more_accumulation_hides_what_happens_once_a_step() -> None:
    """DDP reduces once a step, so tokens per second grow with the micro-steps."""
    speeds = [float(evaluated("ddp", "ddp", training={"grad_accum": n}, nodes=4).tokens_per_s[0]) for n in (1, 2, 8)]
    assert speeds == sorted(speeds)


def test_the_stage_with_the_head_sets_the_pace_of_a_pipeline() -> None:
    """Equal stages wait (p − 1)/m of their work; with a heavy last stage every micro-batch waits for it."""
    assert pipeline_wait_s(64.0, 64.0, 8, 64, 1.0) == pytest.approx(7.0)
    assert pipeline_wait_s(80.0, 64.0, 8, 64, 1.0) == pytest.approx(16 + (8 * 64 - 80) / 64)


def test_small_and_narrow_products_are_bound_by_memory() -> None:
    """The share rises with rows and sides, and is one half where the reads take as long as the arithmetic."""
    assert operand_share(150.0, 0.0, 150.0) == 0.5
    assert operand_share(2048, 2 / 4096, 150) < operand_share(4096, 2 / 4096, 150) < operand_share(4096, 2 / 8192, 150)


def _group(ranks: int, node: Node) -> Group:
    return Group(np.array(ranks), np.array(1), node)


def test_only_an_all_reduce_of_enough_ranks_runs_in_the_switch() -> None:
    """On H200 and B200 in-switch reduction lifts all-reduce above the ring; gathers and small groups stay on the ring."""
    node = evaluated("ddp", "ddp").setup.pool.node
    ring, switch = (float(_group(8, node).bus_bytes_per_s(kind)) for kind in ("ring", "all_reduce"))
    assert (ring, switch) == (pytest.approx(450e9 * 0.81, rel=0.02), pytest.approx(480e9, rel=0.01))
    assert float(_group(4, node).bus_bytes_per_s("all_reduce")) == ring
    assert float(_group(1, node).latency_s()) == 0


def test_start_up_costs_follow_the_measured_sweeps() -> None:
    """Eight GPUs start an all-reduce in 42 to 62 µs, four nodes of eight in about 420; small messages lose most of the bandwidth."""
    node = evaluated("ddp", "ddp", nodes=4).setup.pool.node
    near, far = (float(_group(n, node).latency_s("all_reduce")) for n in (8, 32))
    assert 40e-6 < near < 65e-6
    assert far == pytest.approx(422e-6, rel=0.05)
    small = 2 * 31 / 32 * 16 * 2**20
    assert small / float(_group(32, node).collective_s(small, np.array(1), "all_reduce")) == pytest.approx(64.4e9, rel=0.1)


def test_links_come_from_the_rates_that_were_measured() -> None:
    """PCIe falls with the devices that share it and without peer access; xGMI pairs own a link each; NVMe goes by generation."""
    two, eight = (intra_node_link("pcie4", 31.5e9, n, p2p=True).bytes_per_s for n in (2, 8))
    assert two == pytest.approx(21.9e9, rel=0.02)
    assert eight == pytest.approx(13.2e9, rel=0.02)
    assert intra_node_link("pcie5", 63e9, 4, p2p=False).bytes_per_s == pytest.approx(35e9, rel=0.02)
    assert intra_node_link("xgmi", 448e9, 8, p2p=True).pairwise
    assert 0.9 < inter_node_link(400e9).bytes_per_s / 400e9 < 0.96
    assert nvme_bytes_per_s(5) == (27e9, 11e9)
    assert host_memory_bytes_per_s(8, coherent=False) == pytest.approx(127e9, rel=0.01)
    assert host_memory_bytes_per_s(4, coherent=True) > 2 * host_memory_bytes_per_s(8, coherent=False)


def test_offload_is_exposed_only_where_the_schedule_leaves_it() -> None:
    """The host's update waits for the gradients; copies run beside compute until that is shorter than they are."""
    pins = {"framework": "deepspeed", "strategy": "zero3", "offload_optimizer": "cpu", "offload_parameters": "none"}
    short, long = (one_row(evaluate_request(LLAMA, TRAINING | {"seq_len": s}, constraints=pins)).speed for s in (128, 32768))
    update = next(float(x.value[0]) for x in long.offload.lines if x.card.title == "Adam on the host")
    assert update == pytest.approx(30 * 8.03e9 / 127e9, rel=0.01)
    assert float(short.offload_s[0]) >= float(long.offload_s[0]) >= update


def test_nvme_writes_set_the_pace() -> None:
    """States are read and written once a step; halving the write rate costs more than halving the read rate."""
    pins = {"framework": "deepspeed", "strategy": "zero3", "offload_optimizer": "nvme", "offload_parameters": "nvme"}
    pool = {"nvme_gb": 4000, "nvme_read_gb_per_s": 20, "nvme_write_gb_per_s": 10}
    base, reads, writes = (
        float(one_row(evaluate_request(LLAMA, TRAINING, constraints=pins, pool=pool | change)).speed.step_s[0])
        for change in ({}, {"nvme_read_gb_per_s": 10}, {"nvme_write_gb_per_s": 5})
    )
    assert base < reads < writes


def test_the_network_of_a_gpu_without_machines_is_that_of_its_kin() -> None:
    """An H100 variant nobody rents out gets the network of other SXM H100 nodes, not 100 Gbit/s."""
    pool = {"gpu": "h100-sxm-96gb-hbm2e"}
    node = evaluate_request(LLAMA, TRAINING, nodes=2, pool=pool, constraints={"framework": "fsdp2"}).setup.pool.node
    assert node.inter_node.bytes_per_s > 1000e9 / 8


def test_a_bridge_joins_two_devices_only() -> None:
    """Four A100 PCIe cards talk over PCIe, two over their bridge."""
    two, four = (
        evaluate_request(
            LLAMA, TRAINING, gpus=n, pool={"gpu": "a100-pcie-80gb"}, constraints={"framework": "fsdp2"}
        ).setup.pool.node.intra_node
        for n in (2, 4)
    )
    assert two.name == "nvlink3"
    assert four.name == "pcie4"


def test_routed_experts_work_on_few_rows_and_wait_for_the_router() -> None:
    """An expert sees its share of the tokens: slower per FLOP than a dense layer; its launches cannot hide behind the device."""
    moe = {"shape": LLAMA["shape"] | {"ffn_hidden_size": 2048, "num_experts": 64, "experts_per_token": 4}}
    speed = one_row(evaluate_request(moe, TRAINING, constraints={"framework": "fsdp2"})).speed
    lines = {line.card.title: line for line in speed.compute.lines}
    dense, expert = (float(np.ravel(lines[n].arguments["rate"])[0]) for n in ("matrix products", "expert products"))
    assert expert < dense
    assert float(speed.compute_s[0]) > sum(float(lines[n].value[0]) for n in ("matrix products", "expert products", "kernel launches"))
