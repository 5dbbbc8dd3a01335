"""Trains emitted scripts one after the other in these ranks and writes what each sent and kept: torchrun ... CASES.json

Every script runs as it stands, from its own ``main``, in a process group that outlives it.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist

from tests.verify.counting import Collectives, alive_storages, deepspeed_owners, kept_bytes, torch_owners

STEPS = 3
"""DDP and ZeRO-3 arrange themselves in the first two steps; the last one is counted."""


def loaded(path: Path) -> ModuleType:
    """An emitted script as a module of its own."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Watch:
    """Counts the last step of a script: its collectives, what is kept when the update begins and when the step is over."""

    def __init__(self, script: ModuleType, tally: Collectives) -> None:
        self.script, self.tally, self.there, self.seen = script, tally, alive_storages(), {}
        self.train_step = script.train_step
        script.train_step = self.counted

    def counted(self, step: int, model_or_setup: Any, *rest: Any) -> Any:
        """Stands in for the script's ``train_step``."""
        if step < STEPS - 1:
            return self.train_step(step, model_or_setup, *rest)
        if hasattr(self.script, "update"):
            owners = torch_owners(model_or_setup[0], rest[0])
            self._before(self.script, "update", owners, lambda: True)
        else:
            owners = deepspeed_owners(model_or_setup)
            self._before(model_or_setup, "step", owners, model_or_setup.is_gradient_accumulation_boundary)
        self.tally.clear()
        result = self.train_step(step, model_or_setup, *rest)
        self.seen |= {"calls": dict(self.tally.calls), "payload": dict(self.tally.payload)}
        self.seen["after"] = kept_bytes(owners, self.there)
        return result

    def _before(self, owner: Any, name: str, owners: dict[str, Any], due: Any) -> None:
        function = getattr(owner, name)

        def measured(*args: Any, **kwargs: Any) -> Any:
            if due():
                self.seen["before"] = kept_bytes(owners, self.there)
            return function(*args, **kwargs)

        setattr(owner, name, measured)


def count(path: Path) -> dict[str, Any]:
    """Train one script: what this rank sent, and what is kept by the rank that keeps most of it."""
    sys.argv = [str(path), "--from-scratch", "--steps", str(STEPS)]
    sys.argv += ["--ds-config", str(path.parent / "ds_config.json")] if path.stem.startswith("ds_") else []
    script = loaded(path)
    with Collectives() as tally:
        watch = Watch(script, tally)
        script.main()
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, watch.seen)
    kept = {when: {state: max(seen[when][state] for seen in ranks) for state in ranks[0][when]} for when in ("before", "after")}
    return watch.seen | kept


def main() -> None:
    dist.init_process_group("gloo")
    dist.init_process_group = lambda *_, **__: None
    dist.destroy_process_group = lambda *_: None
    answers = {}
    asked = Path(sys.argv[1])
    cases = json.loads(asked.read_text(encoding="utf-8"))
    for name, case in cases.items():
        answers[name] = count(Path(case))
        if groups := sys.modules.get("deepspeed.utils.groups"):
            groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None  # hpZ's, which DeepSpeed makes once a process
        gc.collect()
    if dist.get_rank() == 0:
        asked.with_name(f"{asked.name}.counts").write_text(json.dumps(answers), encoding="utf-8")
    dist.barrier()
    # The groups of all cases are still open. Threads of theirs that run while Python is taken down would abort a rank that has finished.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
