"""TrainingArguments beyond FSDP: what excludes what, and names that are gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.audit.finding import Change, Hit
from app.audit.reading import at, whole
from app.audit.registry import Card, rule
from app.audit.subject import Subject
from app.audit.torch.blocks import TRAINER

GONE = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "fsdp_min_num_params": "fsdp_config.min_num_params",
    "fsdp_transformer_layer_cls_to_wrap": "fsdp_config.transformer_layer_cls_to_wrap",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "half_precision_backend": "",
    "fp16_backend": "",
    "fp16_opt_level": "",
    "save_safetensors": "",
    "use_mps_device": "",
    "use_ipex": "",
    "sharded_ddp": "fsdp",
    "tp_size": "parallelism_config",
    "tpu_num_cores": "",
    "overwrite_output_dir": "",
    "logging_dir": "",
}
"""Arguments of earlier releases, with what took their place."""


@rule(
    "HF013",
    Card(
        title="fsdp and deepspeed at once",
        severity="error",
        effect="fails",
        why="TrainingArguments takes both, and Trainer raises ValueError.",
        fix="Keep one of them.",
        source="hf-trainer",
        kinds=TRAINER,
        library="transformers",
    ),
)
def both_frameworks(subject: Subject) -> Iterator[Hit]:
    """Two ways to shard."""
    if subject.config.get("fsdp") and subject.config.get("deepspeed"):
        yield Hit(path="fsdp", message="fsdp and deepspeed are both on")


@rule(
    "HF014",
    Card(
        title="An argument of an earlier release",
        severity="error",
        effect="fails",
        why="TrainingArguments has no such field any more: TypeError, unless a class of your own adds it.",
        fix="Use the name of today, or take it out.",
        source="hf-arguments",
        kinds=TRAINER,
        library="transformers",
        since="5.0",
    ),
)
def gone(subject: Subject) -> Iterator[Hit]:
    """A name that was removed."""
    for name, other in GONE.items():
        if name not in subject.config:
            continue
        drop, said = Change(path=(name,), remove=True), f"; {other} took its place" if other else ""
        plain = other and other not in ("use_cpu", "fsdp", "parallelism_config") and at(subject.config, other) is None
        move = (Change(path=tuple(other.split(".")), value=subject.config[name]),) if plain else ()
        yield Hit(path=name, message=f"{name} is no argument any more{said}", changes=(drop, *move))


@rule(
    "HF015",
    Card(
        title="A DeepSpeed configuration without zero_optimization",
        severity="error",
        effect="fails",
        why="accelerate, which the Trainer builds on, raises ValueError for a configuration without that block.",
        fix="Add zero_optimization, with stage 0 if nothing is to be sharded.",
        source="accelerate-plugin",
        kinds=TRAINER,
        library="accelerate",
    ),
)
def no_zero(subject: Subject) -> Iterator[Hit]:
    """A block accelerate asks for."""
    given = subject.config.get("deepspeed")
    if isinstance(given, Mapping) and "zero_optimization" not in given:
        yield Hit(
            path="deepspeed.zero_optimization",
            message="zero_optimization is missing",
            changes=(Change(path=("deepspeed", "zero_optimization", "stage"), value=0),),
        )


@rule(
    "HF016",
    Card(
        title="auto_find_batch_size at stage 3",
        severity="error",
        effect="fails",
        why="The engine of stage 3 cannot be taken down and built again for a smaller batch; Trainer raises ValueError.",
        fix="Set per_device_train_batch_size, and take auto_find_batch_size out.",
        source="hf-trainer",
        kinds=TRAINER,
        library="transformers",
    ),
)
def searched_batch(subject: Subject) -> Iterator[Hit]:
    """A search stage 3 cannot do."""
    if subject.config.get("auto_find_batch_size") and whole(at(subject.config, "deepspeed.zero_optimization.stage")) == 3:
        yield Hit(
            path="auto_find_batch_size",
            message="the batch cannot be searched for at stage 3",
            changes=(Change(path=("auto_find_batch_size",), value=False),),
        )


@rule(
    "HF017",
    Card(
        title="A global batch that is another",
        severity="info",
        effect="changed",
        why="The global batch is the product of micro-batch, micro-steps and data-parallel ranks.",
        fix="Change one of the factors, or the global batch that is planned with.",
        source="hf-arguments",
        kinds=TRAINER,
        needs=("training",),
        library="transformers",
    ),
)
def other_batch(subject: Subject) -> Iterator[Hit]:
    """Factors that multiply to something else."""
    training, ranks, config = subject.training, subject.ranks, subject.config
    micro, accum = whole(config.get("per_device_train_batch_size")), whole(config.get("gradient_accumulation_steps", 1))
    if training is None or training.global_batch is None or None in (ranks, micro, accum) or config.get("parallelism_config"):
        return
    product = (micro or 0) * (accum or 0) * (ranks or 0)
    if product != training.global_batch:
        yield Hit(
            path="per_device_train_batch_size",
            message=f"{micro} × {accum} × {ranks} = {product}, and the training has {training.global_batch}",
        )
