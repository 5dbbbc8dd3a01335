"""accelerate's ``deepspeed_config`` block: what may not stand together, what is ignored, and what never arrives."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.finding import Change, Hit
from app.audit.reading import whole
from app.audit.registry import Card, rule
from app.audit.subject import Subject
from app.audit.torch.blocks import ACCELERATE, DEEPSPEED_KEYS, deepspeed_block, is_whole, joined, near, steps, truth
from app.audit.torch.effective import deepspeed_settings
from app.audit.torch.figures import whole_model
from app.domain.units import format_gib

FILE = "deepspeed_config_file"
OF_FILE = (
    "gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device", "offload_param_device",
    "offload_param_nvme_path", "offload_optimizer_nvme_path", "zero3_save_16bit_model",
)  # fmt: skip
"""What only the file may say where there is one."""
DEVICES = ("none", "cpu", "nvme")
LAUNCHERS = ("pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm")
BESIDE = frozenset({"compute_environment", "distributed_type", "mixed_precision", "num_processes", "num_machines", "machine_rank"})


def _stage(subject: Subject) -> int | None:
    settings = deepspeed_settings(subject)
    return None if settings is None else settings["zero_optimization"]["stage"]


@rule(
    "AC021",
    Card(
        title="Settings beside deepspeed_config_file",
        severity="error",
        effect="fails",
        why="With a file of DeepSpeed's own, accelerate raises ValueError for what the file should say: stage, offload, accumulation, "
        "clipping and mixed_precision, even where both say the same.",
        fix="Say it in the file alone, and take it out here.",
        source="accelerate-plugin",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def beside_the_file(subject: Subject) -> Iterator[Hit]:
    """Things said twice."""
    found = deepspeed_block(subject)
    if found is None or found[1].get(FILE) is None:
        return
    root, values = found
    for name in OF_FILE:
        if name in values:
            yield Hit(
                path=joined(root, name), message=f"{name} stands beside {FILE}", changes=(Change(path=steps(root, name), remove=True),)
            )
    # Null is as good as missing here, and an unquoted no stops the launcher before.
    if root and subject.config.get("mixed_precision") not in (None, False):
        yield Hit(
            path="mixed_precision",
            message=f"mixed_precision stands beside {FILE}",
            changes=(Change(path=("mixed_precision",), remove=True),),
        )


@rule(
    "AC022",
    Card(
        title="Unknown key inside deepspeed_config",
        severity="warning",
        effect="ignored",
        why="Keys inside the block are copied without a check. DeepSpeed's own keys are not read here, but from deepspeed_config_file.",
        fix="Spell the key as accelerate does, or write a DeepSpeed file and name it in deepspeed_config_file.",
        source="accelerate-launch",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def unknown_key(subject: Subject) -> Iterator[Hit]:
    """A key no one reads."""
    found = deepspeed_block(subject)
    if found is None:
        return
    root, values = found
    for key, value in values.items():
        name = str(key)
        if name in DEEPSPEED_KEYS or (not root and name in BESIDE):
            continue
        meant = near(name, DEEPSPEED_KEYS)
        move = (Change(path=steps(root, meant), value=value),) if meant and meant not in values else ()
        yield Hit(
            path=joined(root, name),
            message=f"{name} is ignored" + (f"; {meant} was meant" if meant else ""),
            changes=(Change(path=steps(root, name), remove=True), *move),
        )


@rule(
    "AC023",
    Card(
        title="Parameter offload below stage 3",
        severity="warning",
        effect="ignored",
        why="Only stage 3 divides parameters, so only there can they leave the GPU; below it the device is accepted and ignored.",
        fix="Write zero_stage: 3, or take offload_param_device out.",
        source="ds-zero-config",
        kinds=ACCELERATE,
        library="deepspeed",
    ),
)
def offload_below_3(subject: Subject) -> Iterator[Hit]:
    """Parameters that stay where they are."""
    found, stage = deepspeed_block(subject), _stage(subject)
    if found is None or stage is None or stage >= 3:
        return
    said = str(found[1].get("offload_param_device") or "none").lower()
    if said not in ("cpu", "nvme"):
        return
    cost, model, cluster = "", subject.model, subject.cluster
    if model is not None:
        cost = f": {whole_model(model, 'bf16')} stay on every GPU"
        if cluster is not None:
            cost += f", which has {format_gib(cluster.gpu_bytes)}"
    yield Hit(
        path=joined(found[0], "offload_param_device"),
        message=f"{said} is ignored at stage {stage}{cost}",
        changes=(Change(path=steps(found[0], "zero_stage"), value=3),),
    )


@rule(
    "AC024",
    Card(
        title="zero3_init_flag without stage 3",
        severity="info",
        effect="ignored",
        why="Weights are divided while loading at stage 3 alone; accelerate warns and sets the flag to false.",
        fix="Write false, or take it out.",
        source="accelerate-plugin",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def init_below_3(subject: Subject) -> Iterator[Hit]:
    """A flag of another stage."""
    found, stage = deepspeed_block(subject), _stage(subject)
    if found is not None and stage is not None and stage != 3 and truth(found[1].get("zero3_init_flag")) is True:
        yield Hit(
            path=joined(found[0], "zero3_init_flag"),
            message=f"it has no effect at stage {stage}",
            changes=(Change(path=steps(found[0], "zero3_init_flag"), value=False),),
        )


@rule(
    "AC025",
    Card(
        title="An NVMe path that the launcher does not hand on",
        severity="warning",
        effect="changed",
        why="accelerate launch exports the devices but not the paths, and the plugin takes 'none' for one that is missing: DeepSpeed swaps "
        "into a folder called none in the working directory.",
        fix="Write the offload into a DeepSpeed file with nvme_path, and name it in deepspeed_config_file.",
        source="accelerate-launch",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def lost_path(subject: Subject) -> Iterator[Hit]:
    """States on a disk nobody chose."""
    found = deepspeed_block(subject)
    if found is None or found[1].get(FILE) is not None:
        return
    for part in ("optimizer", "param"):
        if str(found[1].get(f"offload_{part}_device")).lower() == "nvme":
            said = found[1].get(f"offload_{part}_nvme_path")
            yield Hit(
                path=joined(found[0], f"offload_{part}_nvme_path"),
                message=f"{said} does not arrive: swapping goes to ./none" if said else "no path is given: swapping goes to ./none",
            )


@rule(
    "AC026",
    Card(
        title="A value DeepSpeed or the plugin refuses",
        severity="error",
        effect="fails",
        why="The plugin reads zero_stage by int(), gradient_clipping by float() and zero3_init_flag by str_to_bool(); "
        "DeepSpeed knows stages 0 to 3 and the devices none, cpu and nvme.",
        fix="Write one of these.",
        source="ds-zero-config",
        kinds=ACCELERATE,
        library="deepspeed",
    ),
)
def refused_value(subject: Subject) -> Iterator[Hit]:
    """A stage, device or number that is none."""
    found = deepspeed_block(subject)
    if found is None:
        return
    root, values = found
    flag = values.get("zero3_init_flag")
    if flag is not None and truth(flag) is None:
        yield Hit(
            path=joined(root, "zero3_init_flag"),
            message=f"{flag!r} is neither true nor false",
            changes=(Change(path=steps(root, "zero3_init_flag"), remove=True),),
        )
    if values.get(FILE) is not None:
        return
    stage = values.get("zero_stage", 2)
    if stage is not None and str(stage).strip() not in ("0", "1", "2", "3"):
        number = whole(stage)
        mend = (Change(path=steps(root, "zero_stage"), value=3),) if number is not None and number > 3 else ()
        yield Hit(path=joined(root, "zero_stage"), message=f"{stage!r} is no stage of ZeRO", changes=mend)
    for name in ("offload_optimizer_device", "offload_param_device"):
        said = values.get(name)
        if said is not None and str(said).lower() not in DEVICES:
            yield Hit(
                path=joined(root, name),
                message=f"{said!r} is none of {', '.join(DEVICES)}",
                changes=(Change(path=steps(root, name), value=near(str(said).lower(), DEVICES) or "cpu"),),
            )
    clipping = values.get("gradient_clipping")
    if clipping is not None and not _is_float(clipping):
        yield Hit(
            path=joined(root, "gradient_clipping"),
            message=f"{clipping!r} is no number",
            changes=(Change(path=steps(root, "gradient_clipping"), remove=True),),
        )


def _is_float(value: object) -> bool:
    if str(value).lower() == "auto":
        return True
    try:
        float(str(value))
    except ValueError:
        return False
    return True


@rule(
    "AC027",
    Card(
        title="A multi-node launcher that is not there",
        severity="error",
        effect="fails",
        why="DeepSpeed's runner refuses other names. The default, pdsh, needs a host file and password-less ssh; "
        "standard is torchrun on each node.",
        fix="Write deepspeed_multinode_launcher: standard and start accelerate launch on every node.",
        source="accelerate-launch",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def multinode_launcher(subject: Subject) -> Iterator[Hit]:
    """Nodes that nobody starts."""
    found, machines = deepspeed_block(subject), whole(subject.config.get("num_machines"))
    if found is None or machines is None or machines < 2:
        return
    said = found[1].get("deepspeed_multinode_launcher")
    path, mend = (
        joined(found[0], "deepspeed_multinode_launcher"),
        Change(path=steps(found[0], "deepspeed_multinode_launcher"), value="standard"),
    )
    if said is not None and said not in LAUNCHERS:
        yield Hit(path=path, message=f"{said!r} is none of {', '.join(LAUNCHERS)}", changes=(mend,))
    elif said in (None, "pdsh") and not found[1].get("deepspeed_hostfile"):
        yield Hit(
            path=path,
            message=f"{machines} machines by pdsh{'' if said else ', the default'}, and no deepspeed_hostfile",
            severity="warning",
            changes=(mend,),
        )


@rule(
    "AC028",
    Card(
        title="Experts at stage 3 without a leaf class",
        severity="warning",
        effect="fails",
        why="An expert that sees no token on one rank is gathered by the others alone, and the job hangs. A leaf is gathered whole.",
        fix="Name the block of the experts in deepspeed_moe_layer_cls_names.",
        source="ds-coordinator",
        kinds=ACCELERATE,
        needs=("model",),
        library="deepspeed",
    ),
)
def experts_without_leaf(subject: Subject) -> Iterator[Hit]:
    """Gathers in a different order on each rank."""
    found, model = deepspeed_block(subject), subject.model
    if found is None or model is None or not model.is_moe or _stage(subject) != 3 or found[1].get("deepspeed_moe_layer_cls_names"):
        return
    change = Change(path=steps(found[0], "deepspeed_moe_layer_cls_names"), value=model.moe_class)
    yield Hit(
        path=joined(found[0], "deepspeed_moe_layer_cls_names"),
        message=f"{model.name} has experts, and no leaf class is named" + (f"; theirs is {model.moe_class}" if model.moe_class else ""),
        changes=(change,) if model.moe_class else (),
    )


@rule(
    "AC029",
    Card(
        title="Two different numbers of micro-steps",
        severity="info",
        effect="changed",
        why="gradient_accumulation_steps of this block is exported, and counts over what the script gives to Accelerator.",
        fix="Write the number that is meant, or leave it to the script.",
        source="accelerate-plugin",
        kinds=ACCELERATE,
        needs=("training",),
        library="accelerate",
    ),
)
def other_accumulation(subject: Subject) -> Iterator[Hit]:
    """One number here, another in the request."""
    found, training = deepspeed_block(subject), subject.training
    said = whole(found[1].get("gradient_accumulation_steps")) if found is not None else None
    if found is None or said is None or training is None or training.grad_accum in (None, said) or not (is_whole(subject) or found[1]):
        return
    yield Hit(
        path=joined(found[0], "gradient_accumulation_steps"),
        message=f"{said} here counts, and the training has {training.grad_accum}",
        changes=(Change(path=steps(found[0], "gradient_accumulation_steps"), value=training.grad_accum),),
    )
