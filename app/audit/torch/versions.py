"""Keys of FSDP1 under FSDP2 and the other way round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.audit.finding import Hit
from app.audit.registry import Card, rule
from app.audit.subject import Subject
from app.audit.torch.blocks import FSDP_FILES, STRATEGIES, TRAINER, Block, fsdp_block, legacy, truth
from app.audit.torch.effective import reshards, sharding
from app.domain.parallel.fsdp_names import SHARDINGS

OBSOLETE = {
    "backward_prefetch": "FSDP2 always gathers one unit ahead in backward, and warns that it drops the key",
    "forward_prefetch": "FSDP2 overlaps forward without it; explicit lists are set in Python",
    "use_orig_params": "FSDP2 has no flat parameters, so it always uses the original ones",
    "sync_module_states": "FSDP2 broadcasts weights where cpu_ram_efficient_loading asks for it",
    "limit_all_gathers": "FSDP2 frees memory without waiting, so there is nothing to limit",
}


def _row(value: Any) -> Any:
    """The strategy of that name or number; None for any other value."""
    text = str(value).upper()
    return next((row for n, row in enumerate(SHARDINGS, start=1) if text in (str(n), row.fsdp1)), None)


@rule(
    "FS006",
    Card(
        title="sharding_strategy under FSDP2",
        severity="warning",
        effect="ignored",
        why="sharding_strategy is a key of FSDP1. FSDP2 reads reshard_after_forward, and hybrid sharding from parallelism_config.",
        fix="Write fsdp_reshard_after_forward: true for FULL_SHARD, false for SHARD_GRAD_OP, and take fsdp_sharding_strategy out.",
        source="accelerate-plugin",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def strategy_under_v2(subject: Subject) -> Iterator[Hit]:
    """A strategy that nobody reads."""
    found = fsdp_block(subject)
    if found is None or found.version != 2 or found.trainer or not found.has("sharding_strategy"):
        return
    row, runs = _row(found.get("sharding_strategy")), reshards(found)
    same = row is not None and row.reshard is runs and not row.replicates
    changes = [found.drop("sharding_strategy")]
    if row is not None and row.reshard is not None and row.reshard is not runs and not found.has("reshard_after_forward"):
        changes.append(found.put("reshard_after_forward", row.reshard))
    yield Hit(
        path=found.path("sharding_strategy"),
        message=f"{found.get('sharding_strategy')} is ignored: FSDP2 runs with reshard_after_forward {str(runs).lower()}, "
        + ("which is the same" if same else f"like {'FULL_SHARD' if runs else 'SHARD_GRAD_OP'} over all ranks"),
        severity="info" if same else "warning",
        changes=tuple(changes),
    )


@rule(
    "FS007",
    Card(
        title="reshard_after_forward is neither true nor false under FSDP2",
        severity="error",
        effect="fails",
        why="FSDP2 takes true or false there; names of FSDP1's strategies and group sizes raise ValueError: invalid truth value.",
        fix="Write true to free parameters after forward, as FULL_SHARD does, or false to keep them until backward, as SHARD_GRAD_OP does.",
        source="accelerate-plugin",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def reshard_is_no_truth(subject: Subject) -> Iterator[Hit]:
    """A strategy where a truth value belongs."""
    found = fsdp_block(subject)
    if found is None or found.version != 2 or not found.has("reshard_after_forward"):
        return
    said = found.get("reshard_after_forward")
    if truth(said) is not None:
        return
    row = _row(said)
    meant = row.reshard if row is not None and row.reshard is not None else True
    yield Hit(
        path=found.path("reshard_after_forward"),
        message=f"{said!r} is neither true nor false; sharding strategies are FSDP1's",
        changes=(found.put("reshard_after_forward", meant),),
    )


@rule(
    "FS008",
    Card(
        title="reshard_after_forward under FSDP1",
        severity="warning",
        effect="changed",
        why="FSDP1's strategy comes from sharding_strategy, which defaults to FULL_SHARD and wins. "
        "accelerate config itself writes the key that is ignored.",
        fix="Write fsdp_sharding_strategy, or fsdp_version: 2, which reads reshard_after_forward.",
        source="accelerate-plugin",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def reshard_under_v1(subject: Subject) -> Iterator[Hit]:
    """What was meant to choose a strategy runs FULL_SHARD instead."""
    found = fsdp_block(subject)
    if found is None or found.version != 1:
        return
    said = found.get("reshard_after_forward")
    path = found.path("reshard_after_forward") if found.has("reshard_after_forward") else "fsdp"
    if said is None or (found.trainer and _row(said) is None):
        return
    runs, asked = sharding(found), _asked(said)
    if asked == runs or not runs:
        return
    if found.has("sharding_strategy") and not found.trainer:
        yield Hit(
            path=path,
            message=f"{said} is ignored: {runs} of fsdp_sharding_strategy runs",
            severity="info",
            effect="ignored",
            changes=(found.drop("reshard_after_forward"),),
        )
        return
    yield Hit(path=path, message=f"{said} is ignored under FSDP1, which runs {runs}", changes=_mended(found, asked))


def _asked(said: Any) -> str:
    """The strategy that a value of reshard_after_forward stands for."""
    row, flag = _row(said), truth(said)
    return row.fsdp1 if row is not None else "" if flag is None else "FULL_SHARD" if flag else "SHARD_GRAD_OP"


def _mended(found: Block, asked: str) -> Any:
    row = _row(asked)
    if not asked or row is None:
        return ()
    if not found.trainer:
        return found.drop("reshard_after_forward"), found.put("sharding_strategy", asked)
    # The Trainer has no way to another strategy of FSDP1; FSDP2 has two of them.
    return (found.put("version", 2), found.put("reshard_after_forward", row.reshard)) if asked in STRATEGIES[:2] else ()


@rule(
    "FS009",
    Card(
        title="The Trainer's reshard_after_forward names no strategy of FSDP1",
        severity="error",
        effect="fails",
        why="Under version 1 the value is looked up among FSDP1's strategies, so true and false raise KeyError.",
        fix="Write fsdp_config version 2, where it is true or false, or take it out.",
        source="hf-arguments",
        kinds=FSDP_FILES,
        library="transformers",
    ),
)
def trainer_v1_reshard(subject: Subject) -> Iterator[Hit]:
    """A truth value where the Trainer looks for a strategy."""
    found = fsdp_block(subject)
    if found is None or found.version != 1 or not found.trainer or not found.has("reshard_after_forward"):
        return
    said = found.get("reshard_after_forward")
    if _row(said) is None:
        yield Hit(
            path=found.path("reshard_after_forward"),
            message=f"{said!r} is no sharding strategy of FSDP1, which version 1 asks for",
            changes=(found.put("version", 2),) if truth(said) is not None else (found.drop("reshard_after_forward"),),
        )


@rule(
    "FS010",
    Card(
        title="A key of FSDP1 that FSDP2 has no use for",
        severity="info",
        effect="ignored",
        why="FSDP2 has no such setting.",
        fix="Take it out.",
        source="accelerate-plugin",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def obsolete_key(subject: Subject) -> Iterator[Hit]:
    """An option FSDP2 dropped."""
    found = fsdp_block(subject)
    if found is None or found.version != 2:
        return
    for name, why in OBSOLETE.items():
        default = name == "backward_prefetch" and found.text(name) in ("NO_PREFETCH", "NONE")
        if found.has(name) and not default:
            yield Hit(
                path=found.path(name), message=f"{found.written[name]} has no effect under FSDP2", why=why, changes=(found.drop(name),)
            )


@rule(
    "FS011",
    Card(
        title="LOCAL_STATE_DICT under FSDP2",
        severity="error",
        effect="fails",
        why="FSDP2 writes full or sharded checkpoints; the plugin raises ValueError for LOCAL_STATE_DICT.",
        fix="Write SHARDED_STATE_DICT.",
        source="accelerate-plugin",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def local_state_dict(subject: Subject) -> Iterator[Hit]:
    """A checkpoint format FSDP2 has not."""
    found = fsdp_block(subject)
    if found is not None and found.version == 2 and found.text("state_dict_type") in ("LOCAL_STATE_DICT", "2"):
        yield Hit(
            path=found.path("state_dict_type"),
            message=f"{found.get('state_dict_type')} is not supported by FSDP2; use SHARDED_STATE_DICT or FULL_STATE_DICT",
            changes=(found.put("state_dict_type", "SHARDED_STATE_DICT"),),
        )


@rule(
    "FS012",
    Card(
        title="FSDP1 because no version is written",
        severity="info",
        effect="changed",
        why="accelerate launch takes FSDP1 where fsdp_version is missing, and the Trainer FSDP2.",
        fix="Write fsdp_version: 2, unless FSDP1 is meant; say which in any case.",
        source="accelerate-launch",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def default_version(subject: Subject) -> Iterator[Hit]:
    """The older version by default."""
    found = fsdp_block(subject)
    if found is not None and not found.trainer and not found.has("version"):
        yield Hit(path=found.path("version"), message="fsdp_version is missing, so accelerate runs FSDP1")


@rule(
    "FS013",
    Card(
        title="NO_SHARD",
        severity="warning",
        effect="memory",
        why="NO_SHARD keeps everything on every GPU like DistributedDataParallel, is deprecated by torch, and FSDP2 has no such thing.",
        fix="Use distributed_type: MULTI_GPU without fsdp_config, or shard with FULL_SHARD.",
        source="torch-fsdp1",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def no_shard(subject: Subject) -> Iterator[Hit]:
    """Sharding that shards nothing."""
    found = fsdp_block(subject)
    if found is not None and found.version == 1 and not found.trainer and sharding(found) == "NO_SHARD":
        yield Hit(path=found.path("sharding_strategy"), message="NO_SHARD shards nothing and is deprecated")


@rule(
    "HF001",
    Card(
        title="FSDP1 in the Trainer",
        severity="warning",
        effect="slow",
        why="transformers says that version 1 is deprecated and to be removed; only FULL_SHARD of it can still be reached.",
        fix="Write version 2, or take version out.",
        source="hf-arguments",
        kinds=TRAINER,
        library="transformers",
        since="5.0",
    ),
)
def trainer_v1(subject: Subject) -> Iterator[Hit]:
    """A version on its way out."""
    found = fsdp_block(subject)
    if found is not None and found.trainer and found.version == 1 and not legacy(subject):
        yield Hit(path=found.path("version"), message="version 1 is deprecated in the Trainer", changes=(found.put("version", 2),))
