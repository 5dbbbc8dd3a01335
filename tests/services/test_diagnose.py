"""A diagnosis names the tensor, the moment and the device, computes what helps, and says what it does not know."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.errors import InvalidRequestError
from app.services.diagnose.answer import diagnose
from app.services.diagnose.asked import DiagnoseIn
from app.services.plan import judged
from app.services.request import PlanRequest

GIB, MIB = 2**30, 2**20
LLAMA, VOCAB, PARAMS = {"preset": "llama-3.1-8b"}, 128_256, 8_030_261_248
Frame = tuple[str, str, str]


def asked(
    strategy: str | None, training: dict[str, Any], *, model: Any = LLAMA, gpus: int = 8, nodes: int = 1, **more: Any
) -> dict[str, Any]:
    pool = {"gpu": "h100-sxm-80gb", "gpus_per_node": gpus, "nodes": nodes, "host_memory_gib": 2048} | more.pop("pool", {})
    pins = {"strategy": strategy} if strategy else {}
    return {"model": model, "training": training, "cluster": {"pools": [pool]}, "constraints": pins | more}


def answer(text: str, request: dict[str, Any] | None = None, **measured: Any) -> dict[str, Any]:
    return diagnose(DiagnoseIn.model_validate({"text": text, "request": request, "measured": measured})).document()


def oom(size: float, *frames: Frame, rest: str = "") -> str:
    """An out-of-memory error under a traceback."""
    shown = f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / MIB:.2f} MiB"
    stack = "".join(f'  File "{file}", line 1, in {inner}\n    {code}\n' for file, inner, code in frames)
    head = "Traceback (most recent call last):\n" if frames else ""
    return f"{head}{stack}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {shown}.{rest}"


LOSS: Frame = ("loss_utils.py", "fixed_cross_entropy", "loss = nn.functional.cross_entropy(source, target)")
HEAD: Frame = ("modeling_llama.py", "forward", "logits = self.lm_head(hidden_states)")
EAGER: Frame = ("modeling_llama.py", "eager_attention_forward", "attn_weights = nn.functional.softmax(attn_weights, dtype=torch.float32)")
MLP: Frame = ("modeling_llama.py", "forward", "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))")
BACKWARD: Frame = ("train.py", "main", "accelerator.backward(loss)")
RECOMPUTE: Frame = ("torch/utils/checkpoint.py", "recompute_fn", "fn(*args)")
ADAM: Frame = ("adamw.py", "_init_group", 'state["exp_avg_sq"] = torch.zeros_like(p)')
INIT: Frame = ("train.py", "main", "engine, *_ = deepspeed.initialize(model=model)")
MASTER: Frame = ("stage_1_and_2.py", "__init__", "self.single_partition_of_fp32_groups.append(weights_partition)")
FLATTEN: Frame = ("stage_1_and_2.py", "__init__", "self.flatten_dense_tensors_aligned(tensors)")
BUCKET: Frame = ("stage_1_and_2.py", "backward", "buffer = torch.empty(int(self.reduce_bucket_size))")
NORM: Frame = ("stage_1_and_2.py", "get_grad_norm_direct", "all_norms.append(g.data.double().norm(2))")
GATHER: Frame = ("_fsdp_collectives.py", "foreach_all_gather", "all_gather_output = torch.empty(total)")
WARM_UP: Frame = ("modeling_utils.py", "from_pretrained", "caching_allocator_warmup(model, expanded_device_map)")
STAGE3: Frame = ("stage3.py", "_prepare_fp32_grad_for_sub_group", "self.fp32_partitioned_groups_flat[i].grad = x.float()")
PARTITION: Frame = ("stage3.py", "_create_fp16_partitions_with_defragmentation", "torch.empty(n)")
SAVE: Frame = ("engine.py", "_zero3_consolidated_16bit_state_dict", "state_dict[name] = param")
EXPERTS: Frame = ("modeling_qwen3_moe.py", "forward", "current = self.experts(hidden_states)")
SHORT = {"seq_len": 2048, "micro_batch": 1}
CALL: Frame = ("train.py", "main", "output = model(batch)")
LONG = {"seq_len": 8192, "micro_batch": 2}

TENSORS: list[tuple[str, dict[str, Any], str, str]] = [
    (oom(2 * 8192 * VOCAB * 4, LOSS), asked("zero3", LONG), "logits in fp32", "loss"),
    (oom(2 * 8192 * VOCAB * 4), asked("zero3", LONG), "logits in fp32", "loss"),
    (oom(2 * 8191 * VOCAB * 4, LOSS), asked("zero3", LONG), "logits in fp32", "loss"),
    (oom(2 * 8192 * VOCAB * 2, HEAD), asked("zero3", LONG), "logits in 16 bits", "loss"),
    (oom(4 * 4096 * VOCAB * 4, LOSS), asked("zero2", {"seq_len": 4096}), "logits in fp32", "loss"),
    (oom(10_362 * VOCAB * 4, LOSS), asked("zero2", LONG), "logits in fp32", "loss"),
    (oom(32 * 8192**2 * 4, EAGER), asked("zero3", LONG | {"micro_batch": 1}), "attention scores in fp32", "forward"),
    (oom(32 * 8192**2 * 2), asked("zero3", LONG | {"micro_batch": 1, "attention": "eager"}), "attention scores in 16 bits", "forward"),
    (oom(4 * 16384 * 14336 * 2, MLP), asked("fsdp_full", {"seq_len": 16384, "micro_batch": 4}), "one feed-forward", "forward"),
    (
        oom(4 * 16384 * 14336 * 2, BACKWARD, RECOMPUTE, MLP),
        asked("zero3", {"seq_len": 16384, "micro_batch": 4}),
        "one feed-forward",
        "backward",
    ),
    (oom(PARAMS * 4 / 8, ADAM), asked("zero2", SHORT), "one Adam moment", "step"),
    (oom(PARAMS * 4 / 8, INIT, MASTER), asked("zero2", SHORT), "fp32 master weights", "initialisation"),
    (oom(PARAMS * 2, INIT, FLATTEN), asked("zero2", SHORT), "flat copy of all weights", "initialisation"),
    (oom(1.002e9 * 4, STAGE3), asked("zero3", SHORT, model={"preset": "llama-3.1-70b"}, nodes=4), "sub-group", "step"),
    (
        oom(70_553_706_496 * 2 / 32, INIT, PARTITION),
        asked("zero3", SHORT, model={"preset": "llama-3.1-70b"}, nodes=4),
        "flat 16-bit",
        "initialisation",
    ),
    (oom(5e8 * 2, BACKWARD, BUCKET), asked("zero2", SHORT), "reduce bucket", "backward"),
    (oom(VOCAB * 4096 * 8, NORM), asked("zero2", SHORT), "fp64", "step"),
    (oom(VOCAB * 4096 * 4, ADAM), asked("ddp", SHORT), "Adam moment of embed", "step"),
    (oom(2 * VOCAB * 4096 * 2, CALL, GATHER), asked("fsdp_full", SHORT), "root unit", "forward"),
    (oom(218_112_000 * 2, CALL, GATHER), asked("fsdp_full", SHORT), "weights of one block", "forward"),
    (oom(PARAMS * 2, WARM_UP), asked(None, SHORT, gpus=1), "the whole model in 16 bits", "load"),
    (oom(PARAMS * 2, SAVE), asked("zero3", SHORT), "state dict", "save"),
    (
        oom(8 * 8192 * 2048 * 2 * 4, EXPERTS),
        asked("zero3", LONG | {"micro_batch": 4}, model={"preset": "qwen3-30b-a3b"}),
        "experts",
        "forward",
    ),
    (oom(20 * MIB), asked("zero2", SHORT), "at most 10 MiB", "step"),
]


@pytest.mark.parametrize(("text", "request_", "name", "moment"), TENSORS, ids=[f"{row[2]}-{number}" for number, row in enumerate(TENSORS)])
def test_every_kind_of_tensor_is_named(text: str, request_: dict[str, Any], name: str, moment: str) -> None:
    """By its size, the moment and the stack; what helps is computed, the cheapest that is enough first."""
    found = answer(text, request_)
    assert name in found["tensor"]["name"]
    assert (found["device"], found["moment"]) == ("gpu", moment)
    enough = [remedy for remedy in found["remedies"] if remedy["enough"]]
    assert found["remedies"][: len(enough)] == enough
    same = [
        r["step_s_change"]
        for r in enough
        if not {"training.seq_len", "training.optimizer", "cluster.pools.0.nodes", "training.adapter"} & r["settings"].keys()
    ]
    assert same == sorted(same)


def test_what_is_enough_fits_when_it_is_planned() -> None:
    """The settings of a remedy, put into the request, are what the planner was asked about."""
    request = asked("zero2", {"seq_len": 4096, "micro_batch": 1, "grad_accum": 1, "activation_checkpointing": "full"}, gpus=2)
    found = answer(oom(PARAMS * 4 / 2, ADAM), request)
    assert found["expected"]["needed_bytes"] > found["expected"]["capacity_bytes"]
    enough = [remedy for remedy in found["remedies"] if remedy["enough"]]
    assert len(enough) >= 2
    for remedy in enough:
        changed = {part: dict(request[part]) for part in ("model", "training", "cluster", "constraints")}
        for path, value in remedy["settings"].items():
            part, _, key = path.partition(".")
            if path == "cluster.pools.0.nodes":
                changed["cluster"]["pools"] = [request["cluster"]["pools"][0] | {"nodes": value}]
            else:
                changed[part][key] = value
        if {"offload_optimizer", "offload_parameters"} & changed["constraints"].keys() == set():
            changed["constraints"] |= {"offload_optimizer": "none", "offload_parameters": "none"}
        assert judged(PlanRequest.model_validate(changed)).verdict != "does_not_fit"


def test_what_would_not_help_is_said_with_figures() -> None:
    """States alone are too large: neither a fused loss nor fewer sequences free what is missing."""
    found = answer(oom(PARAMS * 4 / 2, ADAM), asked("zero2", {"seq_len": 1024, "micro_batch": 4, "grad_accum": 1}, gpus=2))
    lines = " ".join(found["would_not_help"])
    assert "Micro-batch 1 with 4 accumulated" in lines
    assert "fused" in lines
    assert "missing" in lines


def test_fragmentation_is_told_from_need() -> None:
    """Much reserved and unallocated: expandable segments come first and are enough for the request that failed."""
    rest = (
        " GPU 0 has a total capacity of 79.15 GiB of which 1.33 GiB is free. Of the allocated memory 57.88 GiB is allocated by PyTorch, "
        "and 17.62 GiB is reserved by PyTorch but unallocated."
    )
    found = answer(oom(3.74 * GIB, ADAM, rest=rest))
    first = found["remedies"][0]
    assert first["settings"] == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert (first["enough"], first["step_s_change"]) == (True, 0.0)
    assert 14 * GIB < first["frees_bytes"] < 17.62 * GIB
    assert "sub_group_size" in found["tensor"]["arithmetic"]


def test_a_peak_is_set_against_the_plan() -> None:
    """The largest term is named, and more than planned is said."""
    request = asked("zero3", LONG | {"micro_batch": 4, "activation_checkpointing": "full"})
    found = answer("", request, peak_bytes=70 * GIB, counter="allocated")
    assert found["device"] == "gpu"
    assert found["tensor"]["name"] == "logits and loss"
    assert "planned" in found["cause"]
    assert any("fused" in remedy["label"] for remedy in found["remedies"])
    alone = answer("torch.cuda.max_memory_allocated(): 71.2 GiB")
    assert (alone["tensor"], alone["device"]) == (None, "gpu")
    assert any("request.model" in line for line in alone["missing"])


def test_a_host_that_is_full() -> None:
    """States of a node at once: pinned rounding, NVMe, more nodes; what changes nothing on the host is said."""
    request = asked("zero3", SHORT, model={"params": 70e9}, offload_optimizer="cpu", pool={"host_memory_gib": 1024})
    found = answer("step 1\nexits with return code = -9", request)
    assert (found["device"], found["moment"]) == ("host", "step")
    assert found["tensor"]["bytes"] > 1024 * GIB
    labels = [remedy["label"] for remedy in found["remedies"]]
    assert {"optimizer states on NVMe", "2 nodes instead of 1", "pin_memory false, or a threshold of rounding"} <= set(labels)
    assert any("No offload" in line for line in found["would_not_help"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("RuntimeError: CUDA error: out of memory\ncudaHostAlloc failed in CachingHostAllocator", "could not pin host memory"),
        ("MA 14.96 GB Max_MA 14.96 GB CA 15.1 GB Max_CA 15 GB\nCPU Virtual Memory:  used = 480.61 GB, percent = 95.4%", "nearly filled"),
    ],
)
def test_what_cuda_calls_its_own_may_be_the_hosts(text: str, words: str) -> None:
    """Pinned memory that is refused, and a node that is full beside a GPU that is not."""
    found = answer(text, asked("zero2", SHORT, offload_optimizer="cpu"))
    assert found["device"] == "host"
    assert words in found["cause"]


def test_a_run_that_holds_more_than_planned_is_still_named() -> None:
    """What was allocated already fits no moment of the plan; the size alone says which tensor it is."""
    text = oom(2 * 8192 * VOCAB * 4).replace("\n", " ") + " Of the allocated memory 77.00 GiB is allocated by PyTorch"
    found = answer(text, asked("zero3", LONG | {"activation_checkpointing": "full"}, nodes=16))
    assert "logits in fp32" in found["tensor"]["name"]


def test_another_node_does_not_divide_copies_of_a_loader() -> None:
    """Every rank of a node loads its own, however many nodes there are."""
    found = answer(
        "Loading checkpoint shards: 40%\nexitcode: -9", asked("zero3", SHORT, model={"params": 70e9}, pool={"host_memory_gib": 1024})
    )
    assert (found["device"], found["moment"]) == ("host", "load")
    assert "8" in found["tensor"]["arithmetic"]
    assert "zero.Init" in found["remedies"][0]["label"]
    assert any(line.startswith("More nodes") for line in found["would_not_help"])


def test_batches_that_do_not_add_up() -> None:
    """The ranks the file is written for, and the launcher that starts one only."""
    found = answer("AssertionError: train_batch_size is not equal to micro * gas * world_size 8 != 2 * 1 * 1")
    assert (found["device"], found["moment"]) == ("none", "initialisation")
    assert found["remedies"][0]["settings"] == {"num_gpus": 4}
    assert any("torchrun" in note for note in found["notes"])


@pytest.mark.parametrize("text", ["hello", "loss 1.2 at some point", "x" * 1000])
def test_a_log_that_says_nothing_gets_what_is_missing(text: str) -> None:
    """With the command that would produce it, and no confidence."""
    found = answer(text, asked("zero2", SHORT))
    assert (found["device"], found["tensor"], found["confidence_frac"]) == ("none", None, 0.0)
    assert any("memory_summary" in line for line in found["missing"])
    assert any("dmesg" in line for line in found["missing"])


def test_neither_log_nor_measurement_is_refused() -> None:
    """At the field, with what to give."""
    with pytest.raises(InvalidRequestError) as refused:
        answer("  ")
    assert refused.value.errors[0].loc == ("text",)


def test_complaints_about_the_request_have_its_place() -> None:
    """Paths begin at the question."""
    with pytest.raises(InvalidRequestError) as refused:
        answer(oom(GIB), asked("zero2", SHORT, model={"preset": "lama"}))
    assert refused.value.errors[0].loc == ("request", "model", "preset")


def test_collectives_that_timed_out() -> None:
    """A consequence: the first error over all ranks is asked for; where the log has one, that is the cause."""
    watchdog = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLGATHER, Timeout(ms)=1800000)"
    found = answer(watchdog)
    assert found["device"] == "none"
    assert any("first error" in line for line in found["missing"])
    assert answer(oom(GIB) + "\n" + watchdog)["device"] == "gpu"


def test_printed_settings_are_taken_where_the_request_has_none() -> None:
    """Stage and micro-batch that DeepSpeed listed."""
    text = "zero_optimization_stage ...... 3\ntrain_micro_batch_size_per_gpu  4\n" + oom(4 * 8192 * VOCAB * 4)
    found = answer(text, asked(None, {"seq_len": 8192}))
    assert found["expected"]["settings"] == "deepspeed zero3"
    assert "4 × 8,192" in found["tensor"]["arithmetic"]
