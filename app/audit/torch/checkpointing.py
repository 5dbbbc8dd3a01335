"""Recomputation, and how checkpoints are written."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.finding import Change, Hit
from app.audit.registry import Card, rule
from app.audit.subject import Subject
from app.audit.torch.blocks import FSDP_FILES, TRAINER, fsdp_block, trainer_arguments
from app.audit.torch.effective import checkpointing_argument, effective_fsdp, wrap
from app.audit.torch.figures import billions
from app.domain.units import format_gib

NAMES = ("activation_checkpointing", "gradient_checkpointing")


def _argument(subject: Subject) -> str:
    """The Trainer's key that switches recomputation on; empty where none does."""
    arguments = trainer_arguments(subject)
    if not checkpointing_argument(arguments):
        return ""
    return next(name for name in NAMES if arguments.get(name) is not None)


@rule(
    "FS031",
    Card(
        title="Both kinds of activation checkpointing",
        severity="error",
        effect="fails",
        why="FSDP's own checkpointing and the model's would recompute the same blocks twice; the Trainer raises ValueError, "
        "and without it the second recomputation finds tensors of other shapes.",
        fix="Keep the one in fsdp_config and take the argument out.",
        source="hf-trainer",
        kinds=FSDP_FILES,
        library="transformers",
    ),
)
def both_checkpointings(subject: Subject) -> Iterator[Hit]:
    """Two switches for one thing."""
    found, name = fsdp_block(subject), _argument(subject)
    if found is not None and found.flag("activation_checkpointing") and name:
        changes = (Change(path=(name,), value=False),) if subject.kind == "hf_trainer" else (found.put("activation_checkpointing", False),)
        yield Hit(path=found.path("activation_checkpointing"), message=f"it is on, and so is {name}", changes=changes)


@rule(
    "FS032",
    Card(
        title="The model's checkpointing under FSDP",
        severity="info",
        effect="slow",
        why="The Trainer's argument recomputes inside the blocks FSDP has freed, which gathers their weights once more in backward.",
        fix="Write activation_checkpointing in fsdp_config, and take the argument out.",
        source="hf-arguments",
        kinds=FSDP_FILES,
        library="transformers",
    ),
)
def checkpointing_outside(subject: Subject) -> Iterator[Hit]:
    """The slower of two switches."""
    found, name = fsdp_block(subject), _argument(subject)
    if found is None or found.flag("activation_checkpointing") or not name:
        return
    mend = (found.put("activation_checkpointing", True), Change(path=(name,), value=False)) if subject.kind == "hf_trainer" else ()
    yield Hit(path=name, message=f"{name} recomputes inside FSDP's units", changes=mend)


@rule(
    "FS033",
    Card(
        title="Offloaded activations that stop the job",
        severity="error",
        effect="fails",
        why="The plugin raises ValueError for activation_checkpointing_offload without activation_checkpointing, or under FSDP1.",
        fix="Write fsdp_version: 2 and fsdp_activation_checkpointing: true, or take the key out.",
        source="accelerate-plugin",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def offload_of_nothing(subject: Subject) -> Iterator[Hit]:
    """Offload without what it offloads."""
    found = fsdp_block(subject)
    if found is None or found.trainer or not found.flag("activation_checkpointing_offload"):
        return
    path, needs = found.path("activation_checkpointing_offload"), []
    if not found.flag("activation_checkpointing"):
        needs.append(("fsdp_activation_checkpointing: true", found.put("activation_checkpointing", True)))
    if found.version != 2:
        needs.append(("fsdp_version: 2", found.put("version", 2)))
    if needs:
        said = " and ".join(text for text, _ in needs)
        yield Hit(path=path, message=f"it needs {said}", changes=tuple(change for _, change in needs))


@rule(
    "FS034",
    Card(
        title="Activation checkpointing without blocks",
        severity="error",
        effect="fails",
        why="FSDP2 checkpoints what the wrap policy picks, and without a policy accelerate calls None: TypeError. FSDP1 checkpoints every "
        "module of the model then, each linear layer by itself and inside its parents.",
        fix="Write fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP.",
        source="accelerate-fsdp",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def checkpointing_without_blocks(subject: Subject) -> Iterator[Hit]:
    """Recomputation of nothing in particular."""
    found = fsdp_block(subject)
    if found is None or not found.flag("activation_checkpointing") or wrap(found) != "whole":
        return
    policy = found.text("auto_wrap_policy", "NO_WRAP")
    if policy not in ("NO_WRAP", "SIZE_BASED_WRAP"):
        return
    fails = found.version == 2
    yield Hit(
        path=found.path("activation_checkpointing"),
        message="no wrap policy says which modules are recomputed" + ("" if fails else ", so all of them are, one inside the other"),
        severity="error" if fails else "warning",
        effect="fails" if fails else "slow",
        changes=(found.put("auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),),
    )


@rule(
    "FS035",
    Card(
        title="Full checkpoints on several nodes",
        severity="info",
        effect="slow",
        why="FULL_STATE_DICT gathers all weights, and all optimizer states, on one rank, which writes alone. Sharded checkpoints are "
        "written by all ranks, and load at another number of them.",
        fix="Write SHARDED_STATE_DICT, and export a full model at the end.",
        source="torch-dcp",
        kinds=FSDP_FILES,
        library="torch",
    ),
)
def full_checkpoints(subject: Subject) -> Iterator[Hit]:
    """One rank that writes it all."""
    found, acting, cluster = fsdp_block(subject), effective_fsdp(subject), subject.cluster
    if found is None or acting is None or acting.state_dict != "FULL_STATE_DICT" or acting.strategy == "ddp" or cluster is None:
        return
    model, host = subject.model, cluster.host_bytes
    size = (12 if acting.stored == "fp32" else 6) * model.trainable_params if model is not None else 0
    short = bool(host and size > host)
    if cluster.nodes < 2 and not short:
        return
    cost = f": {billions(model.trainable_params)} parameters and their AdamW states are {format_gib(size)} in one process" if model else ""
    yield Hit(
        path=found.path("state_dict_type"),
        message=f"rank 0 gathers the checkpoint{cost}" + (f", and a node has {format_gib(host)}" if short and host else ""),
        severity="warning" if short else "info",
        effect="memory" if short else "slow",
        changes=() if _saves_only_model(subject) else (found.put("state_dict_type", "SHARDED_STATE_DICT"),),
    )


def _saves_only_model(subject: Subject) -> bool:
    return bool(trainer_arguments(subject).get("save_only_model"))


@rule(
    "HF003",
    Card(
        title="save_only_model with sharded checkpoints",
        severity="error",
        effect="fails",
        why="The Trainer raises ValueError: without the optimizer there is nothing to resume from in shards.",
        fix="Write state_dict_type FULL_STATE_DICT, or leave save_only_model out.",
        source="hf-trainer",
        kinds=TRAINER,
        library="transformers",
    ),
)
def only_model_in_shards(subject: Subject) -> Iterator[Hit]:
    """A pair the Trainer refuses."""
    found, acting = fsdp_block(subject), effective_fsdp(subject)
    if found is not None and acting is not None and _saves_only_model(subject) and acting.state_dict == "SHARDED_STATE_DICT":
        yield Hit(
            path="save_only_model",
            message="the state dict is sharded, and only the model is to be saved",
            changes=(found.put("state_dict_type", "FULL_STATE_DICT"),),
        )


@rule(
    "HF004",
    Card(
        title="save_only_model with load_best_model_at_end",
        severity="error",
        effect="fails",
        why="Under FSDP and DeepSpeed the best model is loaded from the sharded states, which save_only_model leaves out: ValueError.",
        fix="Leave save_only_model out.",
        source="hf-trainer",
        kinds=TRAINER,
        library="transformers",
    ),
)
def best_of_only_model(subject: Subject) -> Iterator[Hit]:
    """A best model that was not kept."""
    shards = fsdp_block(subject) is not None or subject.config.get("deepspeed")
    if shards and _saves_only_model(subject) and subject.config.get("load_best_model_at_end"):
        yield Hit(
            path="save_only_model",
            message="load_best_model_at_end needs more than the model",
            changes=(Change(path=("save_only_model",), value=False),),
        )


@rule(
    "HF005",
    Card(
        title="gradient_checkpointing by its old name",
        severity="info",
        effect="changed",
        why="gradient_checkpointing is an alias of activation_checkpointing, to be removed in v6.",
        fix="Rename it.",
        source="hf-arguments",
        kinds=TRAINER,
        library="transformers",
        since="5.24",
    ),
)
def old_name(subject: Subject) -> Iterator[Hit]:
    """A deprecated alias."""
    config = subject.config
    if config.get("gradient_checkpointing") and config.get("activation_checkpointing") is None:
        yield Hit(
            path="gradient_checkpointing",
            message="gradient_checkpointing is called activation_checkpointing now",
            changes=(
                Change(path=("gradient_checkpointing",), remove=True),
                Change(path=("activation_checkpointing",), value=config["gradient_checkpointing"]),
            ),
        )
