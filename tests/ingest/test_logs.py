"""Logs are read in every wording: sizes, phases, kills, paces, and in time linear in their length."""

from __future__ import annotations

import time
from typing import Any

import pytest

from app.domain.errors import InvalidRequestError
from app.ingest.logs import MAX_CHARACTERS, read_log
from app.ingest.logs.allocator import gpu_numbers
from app.ingest.logs.pace import pace_of

GIB, MIB = 2**30, 2**20
STACK = """Traceback (most recent call last):
  File "/work/train.py", line 210, in <module>
    {outer}
  File "{file}", line 1, in {inner}
    {code}
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.02 GiB is free.
"""

MESSAGES: list[tuple[str, dict[str, float]]] = [
    ("RuntimeError: CUDA out of memory. Tried to allocate 12.94 GiB (GPU 1; 79.35 GiB total capacity; 77.65 GiB already allocated; "
     "316.12 MiB free; 78.10 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb",
     {"requested": 12.94, "capacity": 79.35, "allocated": 77.65, "free": 316.12 / 1024, "reserved": 78.10}),
    ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacty of 23.69 GiB of which "
     "12.94 MiB is free. Including non-PyTorch memory, this process has 23.66 GiB memory in use. Of the allocated memory 22.50 GiB is "
     "allocated by PyTorch, and 870.20 MiB is reserved by PyTorch but unallocated.",
     {"requested": 20 / 1024, "capacity": 23.69, "free": 12.94 / 1024, "allocated": 22.50, "unallocated": 870.2 / 1024}),
    ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 3.00 GiB. GPU 2 has a total capacity of 191.98 GiB of which "
     "2.10 GiB is free. Of the allocated memory 180.00 GiB is allocated by PyTorch, and 5.00 GiB is reserved by PyTorch but unallocated.",
     {"requested": 3, "capacity": 191.98, "free": 2.1, "allocated": 180, "unallocated": 5}),
    ("RuntimeError: NPU out of memory. Tried to allocate 3.74 GiB (NPU 0; 60.97 GiB total capacity; 58.00 GiB already allocated; "
     "58.30 GiB current active; 1.10 GiB free; 59.20 GiB reserved in total by PyTorch)",
     {"requested": 3.74, "capacity": 60.97, "allocated": 58, "free": 1.1, "reserved": 59.2}),
    ("MPS backend out of memory (MPS allocated: 17.90 GB, other allocations: 1.00 MB, max allowed: 18.13 GB). Tried to allocate 256.00 MB",
     {"requested": 0.25, "capacity": 18.13, "allocated": 17.9}),
    ("backward: tried 768 MiB, 674.5 MiB free of 63.42 GiB", {"requested": 0.75, "free": 674.5 / 1024, "capacity": 63.42}),
    ("jaxlib: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.", {"requested": 16}),
    ("CUDA out of memory. Tried to allocate 1,024.00 MiB", {"requested": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "figures"), MESSAGES, ids=[text[:40] for text, _ in MESSAGES])
def test_messages_in_all_wordings(text: str, figures: dict[str, float]) -> None:
    """Request, capacity, free, allocated and idle memory, of old and new releases and other makers."""
    found = read_log(text)
    assert found.events == ("gpu_oom",)
    assert {name: getattr(found.gpu, name) / GIB for name in figures} == pytest.approx(figures, rel=1e-6)


def test_what_a_message_lacks_follows() -> None:
    """Idle memory by difference, the shortage, and how far a printed size may be off."""
    found = read_log(MESSAGES[0][0]).gpu
    assert found.idle == pytest.approx((78.10 - 77.65) * GIB, abs=2)
    assert found.short == pytest.approx(12.94 * GIB - 316.12 * MIB, abs=2)
    assert found.rounding == pytest.approx(0.005 * GIB)


def test_the_request_of_most_ranks_counts() -> None:
    """Other ranks fail with what they happened to ask for."""
    text = "\n".join(
        ["Tried to allocate 2.00 GiB", "Tried to allocate 3.00 GiB", "Tried to allocate 2.00 GiB", "Tried to allocate 1.00 GiB"]
    )
    assert gpu_numbers(text).requested == 2 * GIB


def test_tables_and_lines_that_are_printed() -> None:
    """memory_summary, see_memory_usage, the counters of torch, and nvidia-smi."""
    summary = """|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
| Allocated memory      |  61440 MiB |  71680 MiB |   9000 GiB |   8940 GiB |
|       from large pool |  61000 MiB |  71000 MiB |   8000 GiB |   7940 GiB |
| GPU reserved memory   |  73728 MiB |  73728 MiB |     72 GiB |      0 B   |"""
    gpu = read_log(summary).gpu
    assert (gpu.allocated, gpu.reserved, gpu.peak, gpu.peak_counter) == (60 * GIB, 72 * GIB, 70 * GIB, "allocated")
    usage = (
        "[INFO] [utils.py:781:see_memory_usage] MA 14.96 GB         Max_MA 29.92 GB         CA 30.05 GB         Max_CA 30 GB \n"
        "[INFO] [utils.py:788:see_memory_usage] CPU Virtual Memory:  used = 45.6 GB, percent = 4.5%"
    )
    found = read_log(usage)
    assert found.gpu.peak == round(29.92 * GIB)
    assert found.host.capacity == pytest.approx(45.6 * GIB / 0.045)
    assert read_log("torch.cuda.max_memory_allocated(): 71.2 GiB").gpu.peak == round(71.2 * GIB)
    smi = read_log("| N/A   45C    P0    70W / 400W |  79345MiB / 81559MiB |     99%      Default |").gpu
    assert (smi.peak, smi.peak_counter) == (79345 * MIB, "device")
    assert read_log("the peak was 71.2 GiB").gpu.peak == round(71.2 * GIB)


PHASES = [
    ("model = AutoModelForCausalLM.from_pretrained(name)", "modeling_utils.py", "caching_allocator_warmup", "load"),
    ("engine = deepspeed.initialize(model)", "stage_1_and_2.py", "initialize_optimizer_states", "initialisation"),
    ("model = fully_shard(model)", "_fsdp_init.py", "_init", "initialisation"),
    ("loss = model(**batch).loss", "modeling_llama.py", "forward", "forward"),
    ("loss = model(**batch).loss", "loss_utils.py", "fixed_cross_entropy", "loss"),
    ("accelerator.backward(loss)", "torch/autograd/__init__.py", "_engine_run_backward", "backward"),
    ("engine.backward(loss)", "stage_1_and_2.py", "reduce_ipg_grads", "reduction"),
    ("optimizer.step()", "adamw.py", "_init_group", "step"),
    ("trainer.save_model()", "engine.py", "_zero3_consolidated_16bit_state_dict", "save"),
]


@pytest.mark.parametrize(("outer", "file", "inner", "phase"), PHASES)
def test_phases_by_the_stack(outer: str, file: str, inner: str, phase: str) -> None:
    """The outermost frame that tells decides, and what was printed before the traceback does not."""
    noise = "Loading checkpoint shards: 100%|####| 4/4\n" + "step 12 loss 1.2\n" * 5
    found = read_log(noise + STACK.format(outer=outer, file=file, inner=inner, code="x"))
    assert found.phase == phase


def test_recomputation_in_backward_is_backward() -> None:
    """A checkpointed block runs forward again, in backward."""
    text = STACK.format(outer="loss.backward()", file="torch/utils/checkpoint.py", inner="recompute_fn", code="fn(*args)").replace(
        "torch.OutOf", '  File "modeling_llama.py", line 3, in forward\n    down_proj = self.down_proj(self.act_fn(x))\ntorch.OutOf'
    )
    found = read_log(text)
    assert (found.phase, found.checkpointed) == ("backward", True)
    assert found.hints[0] == "mlp"


def test_the_library_is_told_by_its_files() -> None:
    """In the words of a request."""
    names = {"zero/stage3.py": ("deepspeed", "zero3"), "_fully_shard/_fsdp_param.py": ("fsdp2", "fsdp_full"),
             "bf16_optimizer.py": ("deepspeed", "zero1"),
             "torch/nn/parallel/distributed.py": ("ddp", "ddp"), "zero/stage_1_and_2.py": ("deepspeed", None)}  # fmt: skip
    for file, expected in names.items():
        found = read_log(STACK.format(outer="x()", file=file, inner="f", code="y"))
        assert (found.framework, found.strategy) == expected


KILLS: list[tuple[str, str, str | None]] = [
    ("Loading checkpoint shards: 40%\n[launch.py:321:sigkill_handler] exits with return code = -9", "host_killed", "load"),
    ("ERROR: failed (exitcode: -9) local_rank: 3\nSignal 9 (SIGKILL) received by PID 12", "host_killed", None),
    ("Reason: OOMKilled\nExit Code: 137", "host_killed", None),
    ("kernel: Out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:241000000kB", "host_killed", None),
    ("Saving model checkpoint to out\nexit code -9", "host_killed", "save"),
    ("Creating fp16 ZeRO stage 2 optimizer\nKilled", "host_killed", "initialisation"),
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: not enough memory: you tried to allocate 469762048 bytes.",
        "host_oom",
        None,
    ),
    ("RuntimeError: CUDA error: out of memory in cudaHostAlloc, pin_memory failed", "pin_failed", None),
    ("host_oom, exit -9 around saving", "host_killed", "save"),
]


@pytest.mark.parametrize(("text", "event", "phase"), KILLS, ids=[text[:30] for text, _, _ in KILLS])
def test_kills_in_all_wordings(text: str, event: str, phase: str | None) -> None:
    """By the launcher, the kernel, a container or the allocator of the host, with the last phase that was printed."""
    found = read_log(text)
    assert event in found.events
    assert "gpu_oom" not in found.events
    assert found.phase == phase


def test_what_held_the_host() -> None:
    """Of the node and of its largest process, in decimal units as people write them."""
    found = read_log("Ray kills a worker at 250.04 of 251.54 GB; one task runner held 229.8 GB").host
    assert (found.used, found.capacity, found.process, found.process_name) == (
        250_040_000_000,
        251_540_000_000,
        229_800_000_000,
        "one task runner",
    )
    assert read_log("exit -9: 230 GB per rank, 458 of 482 GB").host.process == 230_000_000_000
    assert read_log("kernel OOM: 16 x 136 GB = 2.2 TB").host.process == 136_000_000_000
    assert read_log("Killed process 1 (python) anon-rss:1000kB").host.process == 1_024_000


def test_a_gpu_that_is_short_comes_before_the_ranks_that_are_ended() -> None:
    """The launcher ends the others with signals, which is no shortage of the host."""
    found = read_log(MESSAGES[1][0] + "\nSending process 12 closing signal SIGTERM\nexits with return code = -9")
    assert found.events[0] == "gpu_oom"


def test_asserted_batches_and_timeouts() -> None:
    """Their numbers, and the watchdog of NCCL."""
    text = "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch * gas * world_size 8 != 2 * 1 * 1"
    found = read_log(text)
    assert (found.events, found.batch) == (("batch_mismatch",), (8, 2, 1, 1))
    watchdog = (
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLGATHER, Timeout(ms)=1800000) ran for 1800 ms"
    )
    assert read_log(watchdog).events == ("collective_timeout",)


PACES: list[tuple[str, float]] = [
    ("  1%|          | 10/1000 [15:00<24:45:00, 90.02s/it]", 90.02),
    (" 50%|#####     | 500/1000 [05:00<05:00,  1.67it/s]", 1 / 1.67),
    ("step time 8.68 s on two nodes, 2.46 s on one", 8.68),
    ("90 s per step on two nodes against 4 s", 90),
    ("elapsed time per iteration (ms): 1234.5 | learning rate", 1.2345),
    ("iteration took 480 ms", 0.48),
    ("2.37 batch/s", 1 / 2.37),
    ("{'step_time': 3.5, 'loss': 1.0}", 3.5),
    ("1.27 s/it", 1.27),
]


@pytest.mark.parametrize(("text", "step_s"), PACES)
def test_step_times_in_all_wordings(text: str, step_s: float) -> None:
    """Of bars, trainers and people."""
    assert pace_of(text).step_s == pytest.approx(step_s, rel=1e-3)


def test_other_paces() -> None:
    """Tokens and samples a second; bars of loading and data do not count; of many steps the median does."""
    assert pace_of("throughput: 27,941 tok/s").tokens_per_s == 27941
    per_gpu = pace_of("4.2k tokens/s/GPU")
    assert (per_gpu.tokens_per_s, per_gpu.per_gpu) == (4200, True)
    assert pace_of("'train_samples_per_second': 12.5").samples_per_s == 12.5
    bars = "Loading checkpoint shards: 50%| 2/4 [00:10<00:10, 5.00s/it]\nTokenizing: 10%| 1/9 [00:01, 3.0it/s]"
    assert not pace_of(bars).known
    assert pace_of("\r".join(f"{n}/9 [00:00, {s}s/it]" for n, s in enumerate((60, 9, 9, 8.9, 9.1)))).step_s == 9


def test_printed_settings() -> None:
    """Of DeepSpeed's own listing, of a Trainer and of a pasted file."""
    text = """  zero_optimization_stage ...... 2
  train_micro_batch_size_per_gpu  4
  "reduce_bucket_size": 5.000000e+08,
  Gradient Accumulation steps = 8
  "sub_group_size": 1e9"""
    found = read_log(text)
    assert found.printed == {"stage": 2, "micro_batch": 4, "reduce_bucket": 500_000_000, "grad_accum": 8, "sub_group": 1_000_000_000}
    assert (found.framework, found.strategy) == ("deepspeed", "zero2")


@pytest.mark.parametrize("text", ["", "hello", "loss 1.23", "\x00\x1b[31m", "error", "12 GiB", "\N{SNOWMAN}" * 100])
def test_a_text_that_says_nothing(text: str) -> None:
    """Is read without complaint, and is empty."""
    assert read_log(text).empty


def test_a_text_that_is_too_long() -> None:
    """Is refused with the length that is read."""
    with pytest.raises(InvalidRequestError, match="200,000 are read"):
        read_log("x" * (MAX_CHARACTERS + 1))


HOSTILE = ["1" * 100, "1 GiB ", "tried to allocate ", "Traceback (most recent call last)\n", "a ", " ", "1,", "step ", "1.1 of 1.1 GB ",
           "| Allocated memory ", "MA 1 GB ",
           "state_dict", "1 x ", "\n", "reduce_bucket_size ", "1 s ", "(", "exit code", "..", "load ", "query "]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_reading_takes_time_linear_in_the_length(piece: str) -> None:
    """However a text is made up, four times the length takes no more than about four times as long."""
    took: list[float] = []
    for length in (MAX_CHARACTERS // 4, MAX_CHARACTERS):
        text = (piece * (length // len(piece) + 1))[:length]
        began = time.process_time()
        read_log(text)
        took.append(time.process_time() - began)
    assert took[1] < 2.0 + 8 * took[0]


def test_no_figure_is_made_up() -> None:
    """Random digits beside units never become a request."""
    empty: Any = read_log("we used 12 GiB here and 3.5 MiB there").gpu
    assert empty.requested is None
