"""What the planner says of a tiny model trained one way: bytes sent by collective and group, bytes kept by state."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.domain.memory.moments import STEP
from app.domain.search.evaluate import Evaluation, evaluate
from app.domain.search.settings import settings_at
from app.emit.deepspeed_zero import uses_bf16_optimizer
from app.emit.job import EmitJob
from app.services.resolve import resolve
from tests.planning import request_of

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 66,
    "intermediate_size": 131,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "vocab_size": 257,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
"""Odd sizes, so that nothing divides evenly and every padding shows."""

KINDS = {
    "gather_sent_bytes": ("all_gather", 1),
    "step_gather_sent_bytes": ("all_gather", 1),
    "reduce_scatter_sent_bytes": ("reduce_scatter", 1),
    "all_reduce_sent_bytes": ("all_reduce", 2),
    "replica_sent_bytes": ("all_reduce", 2),
    "muon_sent_bytes": ("all_gather", 1),
}
"""Collective of each traffic term, and how often a ring sends its payload, less a part in n of it."""

STATES = {
    "parameters": ("parameters", "frozen parameters", "adapter parameters"),
    "gradients": ("gradients", "gradients of tensors cut by a partition", "low-precision gradients beside fp32 accumulation"),
    "master weights": ("fp32 master weights", "duplicate master weights"),
    "optimizer states": ("optimizer states",),
}
"""Terms of each state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plan's figures of one candidate, the job its files are written from, and what the terms say they leave out."""

    job: EmitJob
    evaluation: Evaluation
    index: int

    def payload(self) -> dict[str, int]:
        """Whole messages of a step by collective and ranks of the group, undone from the bytes each GPU sends."""
        out: dict[str, float] = defaultdict(float)
        traffic = self.evaluation.speed.traffic
        for flow in traffic.flows:
            line = traffic.ledger.lines[flow.line]
            sent, ranks = float(line.value[self.index]), int(flow.ranks[self.index])
            if sent and (name := line.card.key.rpartition(".")[2]) in KINDS:
                kind, times = KINDS[name]
                out[f"{kind} over {ranks}"] += sent * ranks / (ranks - 1) / times
        return {name: round(value) for name, value in out.items()}

    @property
    def params(self) -> int:
        """Parameters of the model, without adapters."""
        return self.evaluation.numbers.total

    def term(self, title: str) -> int:
        """Bytes of one memory term at its largest."""
        return round(sum(float(line.value[self.index]) for line in self.evaluation.memory.gpu.lines if line.card.title == title))

    def state(self, state: str) -> int:
        """Bytes of a state when the update begins, its terms together."""
        out = 0.0
        for line in self.evaluation.memory.gpu.lines:
            if line.card.title in STATES[state]:
                alive = np.broadcast_to(line.alive.get(STEP, 0.0), line.value.shape)[self.index]
                out += float(line.value[self.index]) * float(alive)
        return round(out)

    def state_padding(self, state: str) -> float:
        """Bytes of a state that its terms leave out: what is added to divide it evenly."""
        number, ranks = self._column, int(self._column("zero_ranks"))
        width = {
            "parameters": number("param_bytes") * number("state_ranks") / number("param_ranks"),
            "gradients": number("grad_bytes") * (ranks if self.bf16_optimizer else 1),
            "master weights": number("master_bytes") + number("duplicate_bytes"),
            "optimizer states": number("state_bytes"),
        }[state]
        return self._padding() * width / max(1, number("state_ranks"))

    def reduction_padding(self, kind: str) -> float:
        """The same of the gradients on the wire, in a step: each tensor's at ZeRO-3, the flat buffer's of BF16_Optimizer."""
        if kind == "all_reduce" and not self.bf16_optimizer:
            return 0.0
        return self._padding() * self._column("reduce_bytes") * (self._column("grad_accum") if kind == "reduce_scatter" else 1)

    def gather_padding(self, group: str) -> float:
        """The same of the weights, in a step: ZeRO-3's small tensors do not come by again in hpZ's group; FSDP2 gathers factors twice."""
        times = 2 if self.job.settings.framework == "fsdp2" else 1
        secondary = int(self._column("hpz")) > 1 and group.endswith(str(int(self._column("hpz"))))
        return times * self._padding(above=self._column("persistence") if secondary else 0) * self._column("compute_bytes")

    @property
    def bf16_optimizer(self) -> bool:
        """Whether DeepSpeed picks its BF16_Optimizer."""
        return self.job.settings.framework == "deepspeed" and uses_bf16_optimizer(self.job)

    def _column(self, name: str) -> float:
        return float(np.broadcast_to(getattr(self.evaluation.columns, name), self.evaluation.columns.row.shape)[self.index])

    def _tensors(self) -> list[int]:
        """Elements of every tensor."""
        inside = [w.numel for stack in self.job.model.stacks for _ in range(stack.count) for w in stack.block.weights]
        return inside + [w.numel for w in self.job.model.weights]

    def _padding(self, above: float = 0) -> int:
        """Elements that a library adds and no term counts.

        ZeRO-1 and 2 fill the flat parameters up to a multiple of twice the ranks, ZeRO-3 each tensor to a multiple of them, FSDP2 the
        rows of each low-rank factor (those of the model are counted).
        """
        s, ranks = self.job.settings, int(self._column("zero_ranks"))
        if s.strategy == "zero3":
            return sum(-size % ranks for size in self._tensors() if size > above)
        if s.strategy in ("zero1", "zero2"):
            return -int(self.evaluation.numbers.trainable) % (2 * ranks)
        if s.framework == "fsdp2" and (adapter := self.evaluation.setup.recipe.adapter):
            covered = [w for stack in self.job.model.stacks for _ in range(stack.count) for w in stack.block.weights if adapter.covers(w)]
            return sum(-w.shape[0] % ranks * adapter.rank + -adapter.rank % ranks * w.shape[1] for w in covered)
        return 0


def planned(framework: str, strategy: str, *, ranks: int = 2, lean: bool = False, **changes: Any) -> Planned:
    """The plan for the tiny model on nodes of two GPUs, with everything pinned that can be.

    Args:
        changes: of the training recipe; ``group`` pins the shard group, ``config`` changes the model.
    """
    config, changed = CONFIG | changes.pop("config", {}), changes.pop("settings", {})
    constraints = {
        "framework": framework,
        "strategy": strategy,
        "shard_group_size": changes.pop("group", None),
        "offload_optimizer": "none",
        "offload_parameters": "none",
        **changes.pop("constraints", {}),
    }
    training: dict[str, Any] = {
        "seq_len": 32,
        "micro_batch": 2,
        "grad_accum": 1,
        "activation_checkpointing": "none",
        "activation_offload": False,
        "optimizer_implementation": "foreach",
        **changes,
    }
    body = {"gpus": 2, "nodes": ranks // 2, "constraints": constraints}
    resolved = resolve(request_of({"hf_config": config}, training, **body))
    question = resolved.question
    found = evaluate(replace(question.setup, pool=question.pools[0]), question.constraints)
    hpz = constraints["shard_group_size"] if strategy == "zero3" else None
    rows = np.flatnonzero(((found.columns.lean > 0) == lean) & (found.columns.hpz == (hpz or 1)))
    assert len(rows) == 1, "something is not pinned"
    settings = replace(settings_at(found, int(rows[0])), **changed)
    job = EmitJob(
        settings=settings,
        model=resolved.model.architecture,
        hf_id=None,
        hf_config=config,
        adapter=training.get("adapter"),
        engine_version="test",
        figures={},
    )
    return Planned(job=job, evaluation=found, index=int(rows[0]))
