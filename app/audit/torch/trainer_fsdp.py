"""FSDP through TrainingArguments: its own names, its older words, and what it does not read."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.finding import Change, Hit
from app.audit.reading import block
from app.audit.registry import Card, rule
from app.audit.subject import Subject
from app.audit.torch.blocks import FSDP_FILES, STRATEGIES, TRAINER, fsdp_block, legacy, truth

OPTIONS = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "offload", "auto_wrap")
OF_V2 = ("full_shard", "shard_grad_op")


@rule(
    "HF006",
    Card(
        title="offload_params in the Trainer's fsdp_config",
        severity="warning",
        effect="ignored",
        why="TrainingArguments reads cpu_offload; offload_params is accelerate's name and is dropped without a word, prefix or not.",
        fix="Write cpu_offload: true.",
        source="hf-arguments",
        kinds=FSDP_FILES,
        library="transformers",
    ),
)
def offload_by_other_name(subject: Subject) -> Iterator[Hit]:
    """The other reader's key."""
    found = fsdp_block(subject)
    if found is None:
        return
    here, there = ("cpu_offload", "offload_params") if found.trainer else ("offload_params", "cpu_offload")
    if not found.has(there):
        return
    asked = truth(found.get(there))
    mend = [found.drop(there)]
    if not found.has(here):
        spelled = found.put(here, True if asked is None else asked)
        mend.append(spelled)
    yield Hit(
        path=found.path(there),
        message=f"{found.written[there]} is ignored; it is called {mend[-1].path[-1] if len(mend) > 1 else here} here",
        why="" if found.trainer else "The launcher reads fsdp_offload_params; cpu_offload is the Trainer's, dropped without a word.",
        fix="" if found.trainer else "Write fsdp_offload_params: true.",
        severity="info" if asked is False else "warning",
        changes=tuple(mend),
    )


@rule(
    "HF007",
    Card(
        title="sharding_strategy in the Trainer's fsdp_config",
        severity="warning",
        effect="ignored",
        why="TrainingArguments has no such key, under version 1 neither: it is dropped, and the job runs like FULL_SHARD.",
        fix="Write reshard_after_forward: true for FULL_SHARD or false for SHARD_GRAD_OP, under version 2.",
        source="hf-arguments",
        kinds=FSDP_FILES,
        library="transformers",
    ),
)
def strategy_of_launcher(subject: Subject) -> Iterator[Hit]:
    """A key of accelerate's launcher."""
    found = fsdp_block(subject)
    if found is None or not found.trainer or not found.has("sharding_strategy"):
        return
    said = found.text("sharding_strategy")
    wanted = {"FULL_SHARD": True, "1": True, "SHARD_GRAD_OP": False, "2": False}.get(said)
    mend = [found.drop("sharding_strategy")]
    if wanted is not None and found.version == 2 and not found.has("reshard_after_forward"):
        mend.append(found.put("reshard_after_forward", wanted))
    yield Hit(path=found.path("sharding_strategy"), message=f"{said} is not read by the Trainer", changes=tuple(mend))


@rule(
    "HF008",
    Card(
        title="A word of fsdp the Trainer does not know",
        severity="error",
        effect="fails",
        why="Words are compared with the Trainer's options: ValueError for any other.",
        fix="Write fsdp: true and the rest in fsdp_config.",
        source="hf-arguments",
        kinds=TRAINER,
        library="transformers",
    ),
)
def unknown_word(subject: Subject) -> Iterator[Hit]:
    """An option that is none."""
    for word in legacy(subject):
        if word.upper() not in STRATEGIES and word not in ("offload", "auto_wrap"):
            yield Hit(path="fsdp", message=f"{word!r} is none of {', '.join(OPTIONS)}", changes=(Change(path=("fsdp",), value=True),))


@rule(
    "HF009",
    Card(
        title="A strategy of FSDP1 under version 2",
        severity="error",
        effect="fails",
        why="Under version 2, the default, the words hybrid_shard, no_shard and any in upper case raise ValueError.",
        fix="Write fsdp: true with reshard_after_forward in fsdp_config; hybrid sharding takes a ParallelismConfig with dp_replicate_size.",
        source="hf-arguments",
        kinds=TRAINER,
        library="transformers",
    ),
)
def word_of_v1(subject: Subject) -> Iterator[Hit]:
    """A word FSDP2 has no use for."""
    found = fsdp_block(subject)
    if found is None or found.version != 2:
        return
    for word in legacy(subject):
        if word.upper() in STRATEGIES and word not in OF_V2:
            mend = [Change(path=("fsdp",), value=True)]
            if word.lower() in OF_V2:
                mend.append(found.put("reshard_after_forward", word.lower() == "full_shard"))
            yield Hit(path="fsdp", message=f"{word} is only for version 1", changes=tuple(mend))


@rule(
    "HF010",
    Card(
        title="fsdp as text or a list",
        severity="info",
        effect="changed",
        why="transformers takes words for now and says that it will not for long. Every word has a key in fsdp_config.",
        fix="Write fsdp: true and the rest in fsdp_config.",
        source="hf-arguments",
        kinds=TRAINER,
        library="transformers",
        since="5.20",
    ),
)
def as_text(subject: Subject) -> Iterator[Hit]:
    """Words for keys."""
    found, words = fsdp_block(subject), legacy(subject)
    if found is None or not words or any(word not in OPTIONS for word in words):
        return
    if found.version == 2 and any(word.upper() in STRATEGIES and word not in OF_V2 for word in words):
        return
    moved = [found.put(name, value) for name, value in found.implied.items() if not found.has(name)]
    yield Hit(path="fsdp", message=f"{' '.join(words)} is deprecated as text", changes=(Change(path=("fsdp",), value=True), *moved))


@rule(
    "HF011",
    Card(
        title="fsdp_config without fsdp",
        severity="warning",
        effect="ignored",
        why="TrainingArguments looks at fsdp_config only where fsdp is on. Without it the job is plain DDP, every GPU with all states, "
        "unless accelerate launch switches FSDP on with settings of its own.",
        fix="Write fsdp: true.",
        source="hf-arguments",
        kinds=TRAINER,
        library="transformers",
    ),
)
def not_switched_on(subject: Subject) -> Iterator[Hit]:
    """Settings of something that is off."""
    config = subject.config
    empty = {"min_num_params", "xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt"}
    given = {str(key) for key in block(config, "fsdp_config")} - empty
    if given and not config.get("fsdp"):
        yield Hit(path="fsdp", message="fsdp_config is given, and fsdp is not on", changes=(Change(path=("fsdp",), value=True),))


@rule(
    "HF012",
    Card(
        title="cpu_offload as text",
        severity="warning",
        effect="changed",
        why="The Trainer takes any value that is not empty as yes, the text 'false' too.",
        fix="Write true or false without quotes.",
        source="hf-arguments",
        kinds=FSDP_FILES,
        library="transformers",
    ),
)
def offload_as_text(subject: Subject) -> Iterator[Hit]:
    """A no that means yes."""
    found = fsdp_block(subject)
    said = found.get("cpu_offload") if found is not None and found.trainer else None
    if found is not None and said and truth(said) is not True:
        yield Hit(path=found.path("cpu_offload"), message=f"{said!r} switches offload on", changes=(found.put("cpu_offload", False),))
