"""Rules about ZenFlow, DeepCompile, activation checkpointing and mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.deepspeed.common import DS, drop, edit, gb
from app.audit.deepspeed.keys import known_keys, shown
from app.audit.deepspeed.view import AUTO, OPTIMIZER, PARAM, ZERO, View
from app.audit.finding import Hit
from app.audit.reading import at, block, whole
from app.audit.registry import Card, rule
from app.audit.subject import Subject

ZENFLOW, LEAF, STAGE = f"{ZERO}.zenflow", f"{ZERO}.leaf_module", f"{ZERO}.stage"
ACCUM = "gradient_accumulation_steps"
DS_MOE = ("deepspeed.moe.layer.MoE", "deepspeed.moe.layer", "deepspeed_moe")


@rule("DS043", Card(title="ZenFlow without what it needs", severity="error", effect="fails", kinds=DS, source="ds-zenflow", since="0.17.5",
                    why="ZenFlow lives on optimizer offload, and an update_interval of auto sets the micro-steps to 0, by which the "
                        "loss is divided.",
                    fix="offload_optimizer cpu and integers for the intervals"))  # fmt: skip
def zenflow_needs(subject: Subject) -> Iterator[Hit]:
    """No offload, intervals that are not numbers, a selection more often than updates."""
    view = View(subject)
    if not view.config_has_zenflow or view.stage == 0:
        return
    settings = block(view.config, ZENFLOW)
    if view.device(OPTIMIZER) == "none":
        yield Hit(
            path=OPTIMIZER,
            message="ZenFlow needs offload_optimizer, and nothing is offloaded.",
            changes=(edit(f"{OPTIMIZER}.device", "cpu"),),
        )
    update, select = settings.get("update_interval", AUTO), settings.get("select_interval", AUTO)
    strategy = settings.get("select_strategy", AUTO)
    if update == AUTO:
        accum = whole(at(view.config, ACCUM)) or 4
        yield Hit(path=f"{ZENFLOW}.update_interval", severity="warning", effect="changed",
                  changes=(edit(f"{ZENFLOW}.update_interval", max(1, accum)),),
                  message="update_interval auto sets gradient_accumulation_steps to 0: the loss became NaN at the second "
                          "step.")  # fmt: skip
    elif (every := whole(update)) is not None and every < 1:
        yield Hit(
            path=f"{ZENFLOW}.update_interval", message=f"update_interval is {every}.", changes=(edit(f"{ZENFLOW}.update_interval", 1),)
        )
    if strategy in ("step", "epoch") and select == AUTO:
        every = max(1, whole(update) or 1)
        yield Hit(path=f"{ZENFLOW}.select_interval", message=f"select_strategy {strategy} needs select_interval as a number.",
                  changes=(edit(f"{ZENFLOW}.select_interval", every),))  # fmt: skip
    if strategy == AUTO and whole(select) is not None:
        yield Hit(path=f"{ZENFLOW}.select_interval", message=f"select_strategy auto refuses select_interval {shown(select)}.",
                  changes=(drop(f"{ZENFLOW}.select_interval"),))  # fmt: skip
    if strategy == "step" and (whole(select) or 0) < (whole(update) or 0) and whole(select) is not None:
        yield Hit(path=f"{ZENFLOW}.select_interval", message=f"select_interval {shown(select)} is below update_interval {shown(update)}.",
                  changes=(edit(f"{ZENFLOW}.select_interval", whole(update)),))  # fmt: skip
    if settings.get("offload") is True and not (
        view.value(f"{ZERO}.overlap_comm") or (view.stage == 3 and not view.set(f"{ZERO}.overlap_comm"))
    ):
        yield Hit(
            path=f"{ZERO}.overlap_comm", message="zenflow.offload needs overlap_comm true.", changes=(edit(f"{ZERO}.overlap_comm", True),)
        )


@rule("DS044", Card(title="accumulation that ZenFlow overwrites", severity="warning", effect="changed", kinds=DS, source="ds-zenflow",
                    since="0.17.5", fix="make gradient_accumulation_steps and update_interval equal",
                    why="ZenFlow writes its update_interval over gradient_accumulation_steps."))  # fmt: skip
def zenflow_overwrites(subject: Subject) -> Iterator[Hit]:
    """Two numbers for one thing."""
    view = View(subject)
    update, accum = whole(at(view.config, f"{ZENFLOW}.update_interval")), at(view.config, ACCUM)
    stated = whole(accum) if accum is not None else 1
    if view.stage > 0 and view.config_has_zenflow and update and update > 0 and stated and stated != update:
        total = (drop("train_batch_size"),) if at(view.config, "train_micro_batch_size_per_gpu") else ()
        yield Hit(path=ACCUM, message=f"gradient_accumulation_steps {stated} becomes update_interval {update}.",
                  changes=(edit(ACCUM, update), *total))  # fmt: skip


@rule("DS048", Card(title="activation_checkpointing that the engine "
                          "ignores", severity="warning", effect="ignored", kinds=DS, source="ds-engine",
                    why="The engine never reads the block. It acts only where the script calls deepspeed.checkpointing.configure and "
                        "deepspeed.checkpointing.checkpoint; there contiguous_memory_optimization needs partition_activations and "
                        "number_checkpoints.",
                    fix="switch checkpointing on in the model, for example model.gradient_checkpointing_enable()"))  # fmt: skip
def checkpointing_block(subject: Subject) -> Iterator[Hit]:
    """The block, whatever is in it, unless every value is off."""
    settings = block(subject.deepspeed, "activation_checkpointing")
    on = [key for key, value in settings.items() if value not in (False, None, 0)]
    if settings:
        yield Hit(path="activation_checkpointing", severity=None if on else "info", changes=(drop("activation_checkpointing"),),
                  message="activation_checkpointing switches nothing on by itself; activations are kept as the model has it.")  # fmt: skip


@rule("DS053", Card(title="DeepSpeed's own MoE layer at stage 3", severity="error", effect="fails", kinds=DS, source="ds-engine",
                    why="Its experts form groups of their own: stage 1 or 2 with reduce_scatter, or AutoEP.", fix="stage 2"))  # fmt: skip
def own_moe(subject: Subject) -> Iterator[Hit]:
    """deepspeed.moe.layer.MoE beside stage 3, or without reduce_scatter."""
    view, model = View(subject), subject.model
    if model is None or not any(
        name in (model.moe_class, model.hf_class) or model.moe_class.startswith("deepspeed.moe") for name in DS_MOE
    ):
        return
    if view.stage == 3:
        yield Hit(path=STAGE, message="deepspeed.moe.layer.MoE is not supported at stage 3.", changes=(edit(STAGE, 2),))
    elif view.stage > 0 and not view.on(f"{ZERO}.reduce_scatter"):
        yield Hit(path=f"{ZERO}.reduce_scatter", message="deepspeed.moe.layer.MoE needs reduce_scatter true.",
                  changes=(drop(f"{ZERO}.reduce_scatter"),))  # fmt: skip


@rule("DS054", Card(title="experts that are gathered one by one", severity="warning", effect="slow", kinds=DS, source="ds-zero-config",
                    needs=("model",), fix="name the block in zero_optimization.leaf_module, or call set_z3_leaf_modules in the script",
                    why="Ranks that route tokens differently gather different experts, in another order, and wait for each other: "
                        "slow, or a hang. "
                        "The built-in leaf classes are those of Mixtral, Qwen2-MoE and Qwen3-MoE, since 0.18.0."))  # fmt: skip
def experts_without_leaf(subject: Subject) -> Iterator[Hit]:
    """A mixture of experts at stage 3 whose block is no leaf."""
    view, model = View(subject), subject.model
    if (
        view.stage != 3
        or model is None
        or not model.is_moe
        or at(view.config, "expert_parallel.enabled") is True
        or model.moe_class in DS_MOE
    ):
        return
    known = known_keys()[f"{LEAF}.classes"]
    has_key = known.known_to(view.release)
    leaves = view.value(f"{LEAF}.classes") if has_key else []
    names = [str(leaf).rpartition(".")[2] for leaf in leaves] if isinstance(leaves, list) else []
    other = view.value(f"{LEAF}.names") or view.value(f"{LEAF}.name_suffixes") or view.number(f"{ZERO}.stage3_module_granularity_threshold")
    if model.moe_class in names or (has_key and other):
        if not view.set(f"{LEAF}.classes") and model.moe_class in names:
            yield Hit(path=LEAF, severity="info", changes=(edit(f"{LEAF}.classes", [*leaves]),), effect="changed",
                      message=f"{model.moe_class} is a ZeRO-3 leaf by the list of {view.release}; before {known.since} it had to be named, "
                              "or ranks waited for each other.")  # fmt: skip
        return
    add = has_key and bool(model.moe_class) and isinstance(leaves, list)
    shown_class = model.moe_class or "the block of experts"
    yield Hit(path=LEAF, message=f"{shown_class} is no ZeRO-3 leaf, so experts are gathered one by one.",
              changes=(edit(f"{LEAF}.classes", [*leaves, model.moe_class]),) if add else ())  # fmt: skip


@rule("DS058", Card(title="offload by DeepCompile beside another", severity="error", effect="fails", kinds=DS, source="ds-compile",
                    why="compile.offload_opt_states excludes ZeRO's optimizer offload, and offload_activation excludes the other two.",
                    fix="one of them"))  # fmt: skip
def compile_offloads(subject: Subject) -> Iterator[Hit]:
    """Offloads that exclude each other."""
    view = View(subject)
    states, activations, parameters = (f"compile.offload_{name}" for name in ("opt_states", "activation", "parameters"))
    if not view.on("compile.deepcompile"):
        return
    if view.on(states) and view.device(OPTIMIZER) != "none":
        yield Hit(path=states, message="offload_opt_states and offload_optimizer are both on.", changes=(drop(states),))
    others = [path for path in (states, parameters) if view.on(path)]
    if view.on(activations) and others:
        yield Hit(path=activations, message=f"offload_activation excludes {' and '.join(path.partition('.')[2] for path in others)}.",
                  changes=(drop(activations),))  # fmt: skip
    elif len(others) == 2:
        yield Hit(path=parameters, message="offload_parameters and offload_opt_states exclude each other.", changes=(drop(parameters),))


@rule("DS059", Card(title="DeepCompile that does nothing", severity="warning", effect="ignored", kinds=DS, source="ds-compile",
                    why="DeepCompile needs ZeRO and a call of engine.compile() in the script; at stage 0 torch.compile runs alone.",
                    fix="stage 1 to 3, and engine.compile() after deepspeed.initialize"))  # fmt: skip
def deepcompile_idle(subject: Subject) -> Iterator[Hit]:
    """deepcompile at stage 0; a reminder elsewhere."""
    view = View(subject)
    if not view.on("compile.deepcompile"):
        return
    if view.stage == 0:
        yield Hit(
            path="compile.deepcompile", message="deepcompile has no ZeRO to compile at stage 0.", changes=(drop("compile.deepcompile"),)
        )
    elif subject.launcher == "deepspeed":
        yield Hit(path="compile.deepcompile", severity="info", changes=(drop("compile.deepcompile"),),
                  message="deepcompile acts only if the script calls engine.compile().")  # fmt: skip


@rule("DS083", Card(title="torch.compile under "
                          "ZeRO-3", severity="warning", effect="slow", kinds=DS, source="ds-compile", needs=("training",),
                    why="ZeRO-3's gather hooks break torch.compile's graphs at every module; DeepCompile compiles the gathers in.",
                    fix="compile.deepcompile with engine.compile(), or stage 2"))  # fmt: skip
def compile_at_stage_3(subject: Subject) -> Iterator[Hit]:
    """A compiled model at stage 3 without DeepCompile."""
    view = View(subject)
    if subject.training and subject.training.compile and view.stage == 3 and not view.on("compile.deepcompile"):
        yield Hit(path=STAGE, message="The model is compiled, and stage 3 breaks its graph at each gather.",
                  changes=(edit("compile.deepcompile", True),) if view.device(PARAM) == "none" else ())  # fmt: skip


def frozen_bytes(subject: Subject) -> float:
    """Bytes of frozen weights on a GPU that holds all of them."""
    model = subject.model
    return 0.0 if model is None else model.frozen_params * (model.base_bits / 8 if model.base_bits else 2)


@rule("DS082", Card(title="4-bit weights at stage 3", severity="warning", effect="memory", kinds=DS, source="qlora",
                    why="ZeRO-3 shards 4-bit weights only where their storage is a float dtype (bnb_4bit_quant_storage), and "
                        "bitsandbytes puts one "
                        "full copy on each GPU while loading.",
                    fix="bnb_4bit_quant_storage = the training dtype, and room for one whole copy; or stage 2"))  # fmt: skip
def quantized_at_stage_3(subject: Subject) -> Iterator[Hit]:
    """QLoRA beside stage 3."""
    model = subject.model
    if View(subject).stage == 3 and subject.adapter == "qlora":
        weights = f"{model.base_bits or 4}-bit weights of {gb(frozen_bytes(subject))}" if model else "4-bit weights"
        message = f"{weights} are whole on each GPU while loading, and stay so unless their storage is a float dtype."
        yield Hit(path=STAGE, changes=(edit(STAGE, 2),), message=message)
