"""Rules about dtypes: 16-bit modes, masters, accumulation and the wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.audit.deepspeed.common import DS, drop, edit, gb
from app.audit.deepspeed.effective import accumulation_dtype, clipping, dtype_name, runs_bf16_optimizer
from app.audit.deepspeed.keys import shown
from app.audit.deepspeed.view import AUTO, HF, OPTIMIZER, View
from app.audit.finding import Hit
from app.audit.reading import at, block, has
from app.audit.registry import Card, rule
from app.audit.subject import ClusterFacts, Subject

BEFORE_VOLTA = ("pascal", "maxwell", "kepler", "titan x", "titan xp", "p100", "p40", "gtx 10", "gtx 9", "m40", "k80", "sm_6", "sm_5")
BEFORE_AMPERE = ("volta", "turing", "v100", "titan v", "titan rtx", "t4", "rtx 20", "rtx 8000", "rtx 6000 (turing)", "sm_70", "sm_75")
STRING_LOSS = "fp16.loss_scale"


@rule("DS001", Card(title="fp16 and bf16 together", severity="error", effect="fails", kinds=DS, source="ds-config",
                    why="The parser asserts that at most one of them is enabled.", fix="keep one of them"))  # fmt: skip
def both_16_bit(subject: Subject) -> Iterator[Hit]:
    """Both enabled."""
    view = View(subject)
    bf16 = "bf16" if has(view.config, "bf16") else "bfloat16"
    if view.on("fp16.enabled") and at(view.config, f"{bf16}.enabled") is True:
        asked = subject.training.precision if subject.training else "bf16"
        off = bf16 if asked == "fp16" else "fp16"
        yield Hit(path=f"{off}.enabled", message="fp16.enabled and bf16.enabled are both true.", changes=(edit(f"{off}.enabled", False),))


@rule("DS022", Card(title="stage 1 with fp32 accumulation in bf16", severity="warning", effect="memory", kinds=DS, source="ds-engine",
                    why="That combination is run by BF16_Optimizer: a whole fp32 gradient buffer stays on every GPU, and its "
                        "reduction copies it in bf16.",
                    fix="stage 2, or leave grad_accum_dtype out"))  # fmt: skip
def bf16_optimizer(subject: Subject) -> Iterator[Hit]:
    """Four bytes a parameter that stage 2 does not have."""
    view = View(subject)
    if not runs_bf16_optimizer(view):
        return
    numbers = ""
    if subject.model:
        trained, ranks = subject.model.trainable_params, view.shards or 1
        peak = 10 * trained + 12 * trained / ranks
        numbers = f": 4 × {trained:,} = {gb(4 * trained)} more stay on each GPU, and {gb(peak)} at the peak of the reduction"
    yield Hit(path="data_types.grad_accum_dtype", message=f"Stage 1, bf16 and fp32 accumulation select BF16_Optimizer{numbers}.",
              changes=(drop("data_types.grad_accum_dtype"),))  # fmt: skip


@rule("DS023", Card(title="micro-steps added up in bf16", severity="info", effect="changed", kinds=DS, source="ds-engine",
                    why="Without grad_accum_dtype gradients of micro-steps add up in the dtype of the weights, and small ones are lost.",
                    fix="data_types.grad_accum_dtype fp32 at stage 2 or 3"))  # fmt: skip
def bf16_accumulation(subject: Subject) -> Iterator[Hit]:
    """Accumulation over several micro-steps with 8 bits of mantissa."""
    view = View(subject)
    accum = at(view.config, "gradient_accumulation_steps")
    if accum == AUTO and subject.training:
        accum = subject.training.grad_accum
    if not isinstance(accum, int) or accum < 2 or view.precision != "bf16" or dtype_name(view.value("data_types.grad_accum_dtype")):
        return
    honoured = view.stage == 3 or (view.stage == 2 and view.newer("0.19.8"))
    if view.stage == 0 or view.on("bf16.bf16_master_weights_and_grads"):
        return
    yield Hit(path="data_types.grad_accum_dtype", message=f"The gradients of {accum} micro-steps add up in bf16.",
              changes=(edit("data_types.grad_accum_dtype", "fp32"),) if honoured else ())  # fmt: skip


@rule("DS024", Card(title="fp32 accumulation that the release does not do", severity="warning", effect="ignored", kinds=DS,
                    source="ds-stage12", until="0.19.8", fix="install 0.19.8, or use stage 3",
                    why="Before 0.19.8 stage 2 adds gradients up in the dtype of the weights, whatever is asked."))  # fmt: skip
def accumulation_not_honoured(subject: Subject) -> Iterator[Hit]:
    """Stage 2 of older releases."""
    view = View(subject)
    if view.stage == 2 and view.precision in ("bf16", "fp16") and accumulation_dtype(view) == "fp32":
        yield Hit(path="data_types.grad_accum_dtype", changes=(drop("data_types.grad_accum_dtype"),),
                  message=f"DeepSpeed {view.release} accumulates in {view.precision} at stage 2, not in fp32.")  # fmt: skip


@rule("DS025", Card(title="accumulation dtype at stage 0", severity="error", effect="fails", kinds=DS, source="ds-engine",
                    why="Without ZeRO the engine raises NotImplementedError for a dtype that is not the model's.",
                    fix="stage 1 or more, or leave grad_accum_dtype out"))  # fmt: skip
def accumulation_at_stage_0(subject: Subject) -> Iterator[Hit]:
    """grad_accum_dtype beside another precision."""
    view = View(subject)
    asked = dtype_name(view.value("data_types.grad_accum_dtype"))
    if view.stage == 0 and asked and view.precision and asked != view.precision:
        yield Hit(path="data_types.grad_accum_dtype", changes=(drop("data_types.grad_accum_dtype"),),
                  message=f"grad_accum_dtype is {asked}, but the model trains in {view.precision} without ZeRO.")  # fmt: skip


@rule("DS046", Card(title="16-bit masters without what they need", severity="error", effect="fails", kinds=DS, source="ds-config",
                    why="bf16_optimizer_states needs bf16_master_weights_and_grads, masters in 16 bit need ZeRO, "
                        "and without 16-bit states they need the CPU Adam of optimizer offload.",
                    fix="set both bf16 keys at stage 1 or more"))  # fmt: skip
def low_precision_masters(subject: Subject) -> Iterator[Hit]:
    """The keys that depend on each other."""
    view = View(subject)
    master, states = "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"
    offloaded = view.device(OPTIMIZER) != "none"
    if view.on(states) and not view.on(master):
        yield Hit(path=states, message="bf16_optimizer_states requires bf16_master_weights_and_grads.",
                  changes=(edit(master, True),) if view.stage else (drop(states),))  # fmt: skip
    for key, dtype in ((master, "bf16"), ("fp16.fp16_master_weights_and_grads", "fp16")):
        if not view.on(key):
            continue
        if view.stage == 0:
            yield Hit(path=key, message=f"{key.partition('.')[2]} is only there with ZeRO, and the stage is 0.",
                      changes=(drop(key), *((drop(states),) if has(view.config, states) and dtype == "bf16" else ())))  # fmt: skip
        elif not offloaded and not (dtype == "bf16" and view.on(states)) and view.precision == dtype:
            mend = edit(states, True) if dtype == "bf16" else drop(key)
            yield Hit(path=key, message=f"{key.partition('.')[2]} without optimizer offload needs "
                                        f"{'bf16_optimizer_states' if dtype == 'bf16' else 'DeepSpeedCPUAdam'}.",
                      changes=(mend,))  # fmt: skip


@rule("DS061", Card(title="fp32 gradients on the wire", severity="info", effect="slow", kinds=DS, source="ds-engine",
                    why="The dtype doubles the bytes of every reduction, and each bucket is copied into it.",
                    fix="leave communication_data_type out, or write bf16"))  # fmt: skip
def fp32_wire(subject: Subject) -> Iterator[Hit]:
    """communication_data_type fp32 beside 16-bit training."""
    view = View(subject)
    if view.value("communication_data_type") == "fp32" and view.precision in ("bf16", "fp16"):
        trained = subject.model.trainable_params if subject.model else 0
        size = f": {gb(4 * trained)} a reduction in place of {gb(2 * trained)}" if trained else ""
        yield Hit(path="communication_data_type", message=f"Gradients travel in fp32 while training is in {view.precision}{size}.",
                  changes=(drop("communication_data_type"),))  # fmt: skip


@rule("DS064", Card(title="loss scaling that is no scaling", severity="error", effect="fails", kinds=DS, source="ds-precision",
                    why="loss_scale must be a finite number of at least 0; with dynamic scaling the window and the least scale must "
                        "be positive.",
                    fix="loss_scale 0, loss_scale_window 1000, min_loss_scale 1"))  # fmt: skip
def loss_scaling(subject: Subject) -> Iterator[Hit]:
    """Negative scales, empty windows."""
    view, fp16 = View(subject), block(subject.deepspeed, "fp16")
    scale = fp16.get("loss_scale", 0)
    number = _as_number(scale)
    if scale != AUTO and (isinstance(scale, bool) or number is None or not 0 <= number < float("inf")):
        yield Hit(
            path=STRING_LOSS,
            message=f"fp16.loss_scale is {shown(scale)}, which is no number of at least 0.",
            changes=(edit(STRING_LOSS, 0),),
        )
        return
    if not view.on("fp16.enabled") or (scale != AUTO and number != 0):
        return
    for name, default in (("loss_scale_window", 1000), ("min_loss_scale", 1)):
        value = _as_number(fp16.get(name, default))
        if value is not None and value <= 0:
            yield Hit(path=f"fp16.{name}", message=f"fp16.{name} is {shown(fp16.get(name))} with dynamic loss scaling; it must be "
                                                   f"positive.",
                      changes=(edit(f"fp16.{name}", default),))  # fmt: skip


def _as_number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):
        return None


@rule("DS075", Card(title="dtype that the GPU has "
                          "not", severity="error", effect="fails", kinds=DS, source="ds-accelerator", needs=("cluster",),
                    why="bf16 needs compute capability 8.0 for its matrix units; the engine refuses fp16 below 7.0.",
                    fix="fp16 on Volta and Turing, fp32 on anything older"))  # fmt: skip
def unsupported_dtype(subject: Subject) -> Iterator[Hit]:
    """16-bit training on cards that cannot, or only emulate it."""
    view, cluster = View(subject), subject.cluster
    if cluster is None or view.precision not in ("bf16", "fp16"):
        return
    dtype, gpu = view.precision, cluster.gpu_name or cluster.gpu_architecture
    flag = f"{dtype}.enabled"
    if _any_of(cluster, BEFORE_VOLTA):
        refused = "bf16 needs compute capability 8.0" if dtype == "bf16" else "the engine refuses fp16 below compute capability 7.0"
        yield Hit(path=flag, message=f"{gpu} cannot train in {dtype}: {refused}; this card can only do fp32.", fix="train in fp32",
                  changes=(edit(flag, False),))  # fmt: skip
    elif dtype == "bf16" and (_any_of(cluster, BEFORE_AMPERE) or _lacks_bf16(cluster)):
        yield Hit(path=flag, severity="warning", effect="slow", fix="fp16 with dynamic loss scaling",
                  message=f"{gpu} has no bf16 matrix units, which came with compute capability 8.0: products are emulated or refused.",
                  changes=(edit(flag, False), edit("fp16.enabled", True)))  # fmt: skip


def _lacks_bf16(cluster: ClusterFacts) -> bool:
    return cluster.vendor == "nvidia" and bool(cluster.supports) and "bf16" not in cluster.supports


def _any_of(cluster: ClusterFacts, words: tuple[str, ...]) -> bool:
    texts = f" {cluster.gpu_architecture.lower()} {cluster.gpu_name.lower()} "
    return any(f" {word}" in texts or f"-{word}" in texts for word in words)


@rule("DS093", Card(title="parameter dtype that is not the precision", severity="error", effect="fails", kinds=DS, source="ds-engine",
                    since="0.19.2", why="data_types.param_dtype must be the dtype that fp16 or bf16 enables.", fix="leave it "
                                                                                                                   "out"))  # fmt: skip
def parameter_dtype(subject: Subject) -> Iterator[Hit]:
    """param_dtype beside another precision."""
    view = View(subject)
    asked = dtype_name(view.value("data_types.param_dtype"))
    if asked and view.precision in ("bf16", "fp16") and asked != view.precision:
        yield Hit(path="data_types.param_dtype", changes=(drop("data_types.param_dtype"),),
                  message=f"param_dtype is {asked}, but {view.precision} is enabled.")  # fmt: skip


@rule("DS009", Card(title="clipping that is not stated", severity="info", effect="changed", kinds=DS, source="ds-constants",
                    why="gradient_clipping is 1.0 where it is left out since 0.19.3, and was off before.",
                    fix="state it, so that an upgrade does not change training"))  # fmt: skip
def clipping_absent(subject: Subject) -> Iterator[Hit]:
    """The default that has changed."""
    if "gradient_clipping" not in subject.deepspeed:
        norm = clipping(View(subject))
        says = f"clips gradients to a norm of {norm:g}" if norm else "does not clip gradients"
        yield Hit(path="gradient_clipping", message=f"gradient_clipping is left out; DeepSpeed {subject.release('deepspeed')} {says}.",
                  changes=(edit("gradient_clipping", norm if norm is not None else 1.0),))  # fmt: skip


@rule("DS095", Card(title="no 16-bit mode", severity="info", effect="memory", kinds=DS, source="ds-config",
                    why="With neither fp16 nor bf16 enabled the engine trains in fp32: twice the bytes, without matrix units' 16-bit "
                        "speed.",
                    fix="bf16.enabled true"))  # fmt: skip
def full_precision(subject: Subject) -> Iterator[Hit]:
    """A file that trains in fp32, perhaps without meaning to."""
    view = View(subject)
    autocast = block(view.config, "torch_autocast")
    asked = subject.training.precision if subject.training else ""
    has_auto = any(at(view.config, f"{kind}.enabled") == AUTO for kind in ("bf16", "fp16")) and subject.launcher not in HF
    if view.precision == "fp32" and not _on(autocast) and asked != "fp32" and view.stage > 0 and not has_auto:
        changes = (edit("bf16.enabled", True),) if view.stage and asked == "bf16" else ()
        yield Hit(path="bf16.enabled", message="Neither bf16 nor fp16 is enabled, so weights and gradients are fp32.", changes=changes)


def _on(autocast: Mapping[str, object]) -> bool:
    return bool(autocast.get("enabled"))
