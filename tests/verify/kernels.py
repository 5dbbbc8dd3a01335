"""Compiles DeepSpeed's CPU kernels ahead of the tests, so that no time limit falls into a build: python -m tests.verify.kernels

They stay in TORCH_EXTENSIONS_DIR. async_io needs libaio's header; without it the NVMe tests are counted as left out.
"""

from __future__ import annotations

import os
from pathlib import Path

from deepspeed.ops.op_builder.cpu import AsyncIOBuilder, CPUAdamBuilder, PinMemoryBuilder, ShareMemCommBuilder

BUILDERS = (ShareMemCommBuilder, CPUAdamBuilder, PinMemoryBuilder, AsyncIOBuilder)


def main() -> None:
    # A build that was killed leaves a lock which every later process would wait for.
    for lock in Path(os.environ["TORCH_EXTENSIONS_DIR"]).glob("*/lock"):
        lock.unlink()
    for builder in BUILDERS:
        if builder().is_compatible(verbose=False):
            builder().load(verbose=False)


if __name__ == "__main__":
    main()
