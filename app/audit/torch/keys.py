"""Names and values inside ``fsdp_config``: what is dropped in silence, and what stops the job."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.finding import Hit
from app.audit.reading import whole
from app.audit.registry import Card, rule
from app.audit.subject import Subject
from app.audit.torch.blocks import FSDP_FILES, STRATEGIES, Block, fsdp_block, near, truth
from app.audit.torch.effective import wrap

SHARED = frozenset({
    "version", "reshard_after_forward", "auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params", "state_dict_type",
    "cpu_ram_efficient_loading", "activation_checkpointing", "forward_prefetch", "backward_prefetch", "use_orig_params",
    "sync_module_states",
})  # fmt: skip
OF_LAUNCHER = SHARED | {"sharding_strategy", "offload_params", "activation_checkpointing_offload", "ignored_modules"}
OF_TRAINER = SHARED | {"cpu_offload", "limit_all_gathers", "xla", "xla_fsdp_v2", "xla_fsdp_settings", "xla_fsdp_grad_ckpt"}
ELSEWHERE = frozenset({"offload_params", "sharding_strategy", "limit_all_gathers", "cpu_offload"})
"""Keys of the other reader, which have rules of their own."""
POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
STATE_DICTS = ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT")
PREFETCHES = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
FLAGS = ("cpu_ram_efficient_loading", "activation_checkpointing")
FLAGS_OF_V1 = ("forward_prefetch", "use_orig_params", "sync_module_states")


@rule(
    "FS001",
    Card(
        title="Unknown key inside fsdp_config",
        severity="warning",
        effect="ignored",
        why="Keys inside the block are copied without a check, and nothing reads an unknown one.",
        fix="Spell the key as the library does, or take it out.",
        source="accelerate-launch",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def unknown_key(subject: Subject) -> Iterator[Hit]:
    """A key no reader knows."""
    found = fsdp_block(subject)
    if found is None:
        return
    known = OF_TRAINER if found.trainer else OF_LAUNCHER
    # A bare block may carry what belongs beside it in the whole file.
    beside = {"mixed_precision", "fsdp", "fsdp_config"} if not found.root else set()
    for name, value in found.values.items():
        if name in known or name in ELSEWHERE or found.written[name] in beside or name.startswith(("bnb_", "quantization")):
            continue
        meant = near(name, known)
        spelled = meant if found.trainer else f"fsdp_{meant}"
        yield Hit(
            path=found.path(name),
            message=f"{found.written[name]} is no key of fsdp_config and is ignored" + (f"; {spelled} was meant" if meant else ""),
            changes=(found.drop(name), *([found.put(meant, value)] if meant and not found.has(meant) else [])),
        )


@rule(
    "FS002",
    Card(
        title="fsdp_version is neither 1 nor 2",
        severity="error",
        effect="fails",
        why="The launcher writes it to an environment variable that is read as a whole number, and there are two versions.",
        fix="Write fsdp_version: 2.",
        source="accelerate-plugin",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def no_version(subject: Subject) -> Iterator[Hit]:
    """A version that is no version."""
    found = fsdp_block(subject)
    if found is None or not found.has("version"):
        return
    said = found.get("version")
    if not isinstance(said, bool) and str(said).strip() in ("1", "2"):
        return
    if found.trainer and whole(said) in (1, 2):
        return
    yield Hit(
        path=found.path("version"), message=f"{said!r} is no version of FSDP: 1 or 2, as a whole number", changes=(found.put("version", 2),)
    )


@rule(
    "FS003",
    Card(
        title="A value that is no name the library has",
        severity="error",
        effect="fails",
        why="Names are looked up in enumerations when the plugin is built; any other is a KeyError or a ValueError there.",
        fix="Use one of the names.",
        source="accelerate-plugin",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def unknown_name(subject: Subject) -> Iterator[Hit]:
    """A strategy, policy, state dict or prefetch by a wrong name."""
    found = fsdp_block(subject)
    if found is None:
        return
    if found.version == 1 and not found.trainer:
        yield from _named(found, "sharding_strategy", STRATEGIES, numbered=len(STRATEGIES))
    yield from _named(found, "auto_wrap_policy", POLICIES, exact=found.trainer)
    yield from _named(found, "state_dict_type", STATE_DICTS, numbered=len(STATE_DICTS))
    # FSDP2 drops the value, but only after it was looked up; the Trainer does not hand it to FSDP2.
    if found.version == 1 or not found.trainer:
        yield from _named(found, "backward_prefetch", PREFETCHES, numbered=2)


def _named(found: Block, name: str, names: tuple[str, ...], *, numbered: int = 0, exact: bool = False) -> Iterator[Hit]:
    said = found.values.get(name)
    # Null is not handed on, except where the library turns it into text or asks it for capitals.
    asked = name in ("auto_wrap_policy", "backward_prefetch") if found.trainer else name == "sharding_strategy"
    if not found.has(name) or (said is None and not asked):
        return
    text = str(said) if exact else str(said).upper()
    if text in names or (text.isascii() and text.isdecimal() and len(text) < 3 and 1 <= int(text) <= numbered):
        return
    meant = near(str(said).upper(), names)
    yield Hit(
        path=found.path(name),
        message=f"{said!r} is none of {', '.join(names)}" + (f"; {meant} was meant" if meant else ""),
        changes=(found.put(name, meant),) if meant else (found.drop(name),) if said is None else (),
    )


@rule(
    "FS004",
    Card(
        title="A switch with a value that is neither true nor false",
        severity="error",
        effect="fails",
        why="The value travels as text through str_to_bool, which raises ValueError for anything but yes and no in some spelling.",
        fix="Write true or false.",
        source="accelerate-plugin",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def no_truth_value(subject: Subject) -> Iterator[Hit]:
    """A switch that is neither on nor off."""
    found = fsdp_block(subject)
    if found is None:
        return
    names = FLAGS + (FLAGS_OF_V1 if found.version == 1 else ())
    names += () if found.trainer else ("offload_params", "activation_checkpointing_offload")
    for name in names:
        if found.has(name) and truth(found.get(name)) is None:
            said = found.get(name)
            mend = (found.drop(name),) if said is None else ()
            yield Hit(path=found.path(name), message=f"{said!r} is neither true nor false", changes=mend)


@rule(
    "FS005",
    Card(
        title="Settings of one wrap policy under another",
        severity="info",
        effect="ignored",
        why="Class names are read under TRANSFORMER_BASED_WRAP alone, and the smallest size under SIZE_BASED_WRAP.",
        fix="Name the policy the setting belongs to, or take the setting out.",
        source="accelerate-plugin",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def of_another_policy(subject: Subject) -> Iterator[Hit]:
    """Class names without the policy that reads them, or a size without its own."""
    found = fsdp_block(subject)
    if found is None:
        return
    policy = found.text("auto_wrap_policy", POLICIES[0] if found.trainer else POLICIES[2])
    if policy != POLICIES[0] and found.get("transformer_layer_cls_to_wrap"):
        said = found.get("transformer_layer_cls_to_wrap")
        yield Hit(
            path=found.path("transformer_layer_cls_to_wrap"),
            message=f"{said} is not read under {policy}" + ("" if found.has("auto_wrap_policy") else ", the default"),
            severity="warning" if wrap(found) == "whole" else "info",
            changes=(found.put("auto_wrap_policy", POLICIES[0]),),
        )
    if policy != POLICIES[1] and found.get("min_num_params"):
        yield Hit(
            path=found.path("min_num_params"),
            message=f"{found.get('min_num_params')} is not read under {policy}",
            changes=(found.drop("min_num_params"),),
        )
