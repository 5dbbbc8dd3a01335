"""What is said about loading: the plan counts what the emitted files do, and many scripts do otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.memory.loading import load_bytes
from app.domain.plan import Candidate, PlanWarning, Settings
from app.domain.search.evaluate import Evaluation, host_capacity_bytes
from app.domain.search.warn.base import warning
from app.domain.units import format_count, format_gib

_INITIALISATION = "engine initialisation"
_FP32, _HELD_TWICE = 4.0, 2.0


def loading_warnings(evaluation: Evaluation, candidate: Candidate) -> Iterator[PlanWarning]:
    """Load and initialisation peaks that the plan avoids and another script would meet."""
    recipe = evaluation.setup.recipe
    if recipe.adapter and recipe.adapter.kind == "qlora":
        return  # quantised layer by layer as it is read, onto the GPU
    yield from _on_the_host(evaluation, candidate)
    yield from _on_the_gpu(evaluation, candidate)


def _on_the_host(evaluation: Evaluation, candidate: Candidate) -> Iterator[PlanWarning]:
    capacity, settings = host_capacity_bytes(evaluation.setup), candidate.settings
    if capacity is None:
        return
    params, ranks = evaluation.numbers.total, min(settings.world_size, settings.gpus_per_node)
    in_fp32 = float(load_bytes(params, _FP32, ranks))  # type: ignore[arg-type]
    if in_fp32 * _HELD_TWICE <= capacity:
        return
    arithmetic = f"{format_count(params)} parameters × 4 bytes × {ranks} rank{'s' if ranks > 1 else ''} = {format_gib(in_fp32)}"
    how, fix = _host_words(settings)
    yield warning(
        "load_peak",
        f"{how} Every rank loading a whole copy in fp32 takes {arithmetic} on each node, or in 16 bits half of that, and up to twice as "
        f"much while the weights are converted or handed over; {format_gib(capacity)} may be used.",
        "cluster.pools.0.host_memory_gib",
        fix + " Watch the resident memory of every rank while it loads.",
        "warning" if in_fp32 > capacity else "info",
    )


def _host_words(settings: Settings) -> tuple[str, str]:
    """What the emitted files do, and how to get the same elsewhere."""
    if settings.framework == "fsdp2":
        return (
            "fsdp2_train.py loads on rank 0 alone. accelerate does so only where its variables are set before from_pretrained; "
            "fsdp_cpu_ram_efficient_loading in a file that is read later has no effect.",
            "Export ACCELERATE_USE_FSDP=true and FSDP_CPU_RAM_EFFICIENT_LOADING=true before from_pretrained, or build the model on the "
            "meta device on every rank but one.",
        )
    if settings.strategy == "zero3":
        return (
            "ds_train.py loads on rank 0 alone, into a model that zero.Init has partitioned. from_pretrained before the DeepSpeed "
            "configuration object exists never runs zero.Init.",
            "Create TrainingArguments or HfDeepSpeedConfig before from_pretrained, and keep it alive.",
        )
    return (
        "Below ZeRO-3 every rank loads a whole copy, which the plan counts in the dtype its script asks for.",
        "Pass that dtype to from_pretrained; ZeRO-3 and FSDP2 can load on one rank.",
    )


def _on_the_gpu(evaluation: Evaluation, candidate: Candidate) -> Iterator[PlanWarning]:
    gpu, settings, rates = candidate.gpu, candidate.settings, evaluation.setup.rates
    if gpu.needed_bytes > gpu.capacity_bytes and gpu.peak_moment != _INITIALISATION:
        return
    params = evaluation.numbers.total
    width, how, fix = _gpu_words(settings, adapter=evaluation.numbers.adapter > 0)
    if width == 0:
        return
    fixed = rates.context_bytes + (rates.nccl_bytes if settings.world_size > 1 else 0.0)
    # Where weights are halved on the GPU, the largest tensor is there in both widths.
    halved = evaluation.numbers.largest_tensor * 2 if width == _FP32 and settings.framework == "deepspeed" else 0
    peak = params * width + halved + fixed
    if peak <= gpu.capacity_bytes:
        return
    yield warning(
        "init_peak",
        f"{how} {format_count(params)} parameters × {width:g} bytes = {format_gib(params * width)}, with context and communicators "
        f"{format_gib(peak)} of the {format_gib(gpu.capacity_bytes)} usable, before anything is divided.",
        "cluster.pools.0.gpu",
        fix,
        "warning" if gpu.peak_moment == _INITIALISATION or params * 2 + fixed <= gpu.capacity_bytes else "info",
    )


def _gpu_words(settings: Settings, *, adapter: bool) -> tuple[float, str, str]:
    """Bytes of a parameter, what another script would do with them, and how to avoid it; 0 where there is no other way."""
    if settings.framework == "fsdp2":
        width = 2.0 if adapter or settings.param_dtype != "fp32" else _FP32
        return (
            width,
            "fsdp2_train.py builds the model on the meta device. A script that moves it to each GPU before fully_shard, or loads it there, "
            "holds it whole:",
            "Build on the meta device, shard, then fill from rank 0, as fsdp2_train.py does.",
        )
    if settings.strategy == "zero3":
        return (
            _FP32 if settings.precision == "fp32" else 2.0,
            "ds_train.py builds the model inside zero.Init. Built outside it, DeepSpeed moves the whole model to every GPU before it "
            "partitions:",
            "Create TrainingArguments or HfDeepSpeedConfig before from_pretrained.",
        )
    if settings.framework == "deepspeed":
        return (
            _FP32,
            "Below ZeRO-3 every GPU holds all weights, and a script that loads or upcasts them in fp32 has them so until the engine casts:",
            "Load in 16 bits, as ds_train.py does, or use ZeRO-3, whose zero.Init never has the model whole.",
        )
    return 0.0, "", ""
