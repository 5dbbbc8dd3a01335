"""Rules about FSDP, accelerate and the Trainer. Importing the package registers them."""

from app.audit.torch import (
    accelerate,
    accelerate_deepspeed,
    checkpointing,
    keys,
    loading,
    memory,
    numerics,
    parallelism,
    processes,
    trainer,
    trainer_fsdp,
    versions,
    wrap,
)

__all__ = [
    "accelerate",
    "accelerate_deepspeed",
    "checkpointing",
    "keys",
    "loading",
    "memory",
    "numerics",
    "parallelism",
    "processes",
    "trainer",
    "trainer_fsdp",
    "versions",
    "wrap",
]
