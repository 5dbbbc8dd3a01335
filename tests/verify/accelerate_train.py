"""Somebody's training script for ``accelerate launch``, on the data and loss of the emitted one: ... WEIGHTS STEPS

On a CPU accelerate never chooses FSDP by itself: without the few lines of ``fsdp_on_cpu`` every rank would train alone and
end well. So it also says whether the ranks agreed: their gradients, and who held how much.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ddp_train
import torch
import torch.distributed as dist
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, DummyOptim
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

FSDP = os.environ.get("ACCELERATE_USE_FSDP") == "true"


def fsdp_on_cpu() -> None:
    """Let several CPU processes be what several GPUs would: FSDP, if the launcher was told so."""
    original = AcceleratorState.__init__

    def start(self: AcceleratorState, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU and fsdp_plugin is not None:
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin
            self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = start


def optimizer_for(model: torch.nn.Module) -> Any:
    """The emitted script's AdamW; under DeepSpeed that of ds_config.json."""
    if not FSDP:
        return DummyOptim(model.parameters())
    return torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


def owned_numel(param: torch.nn.Parameter) -> int:
    """Elements this rank keeps of a weight."""
    local = param.to_local() if isinstance(param, DTensor) else getattr(param, "ds_tensor", param)
    return int(local.numel())


def main() -> None:
    source, steps = Path(sys.argv[1]), int(sys.argv[2])
    fsdp_on_cpu()
    accelerator = Accelerator(cpu=FSDP, kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    model, optimizer = accelerator.prepare(model, optimizer_for(model))
    args = SimpleNamespace(seq_len=64, global_batch=8, seed=0, data=str(source / "tokens.bin"), model=str(source))
    data = ddp_train.Data(args, 256)
    local = args.global_batch // accelerator.num_processes
    for step in range(steps):
        inputs, labels = data.batch(step * args.global_batch + accelerator.process_index * local, local)
        loss = ddp_train.summed_loss(model, inputs, labels) / labels.numel()
        accelerator.backward(loss)
        norm: Any = accelerator.clip_grad_norm_(model.parameters(), 1.0)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        optimizer.step()
        optimizer.zero_grad()
        both = torch.stack([loss.detach(), torch.as_tensor(float(norm))])
        seen = [torch.zeros(2) for _ in range(accelerator.num_processes)]
        dist.all_gather(seen, both)
        losses, norms = torch.stack(seen).T
        assert norms.max() - norms.min() < 1e-6, f"ranks have gradients of their own: {norms.tolist()}"
        accelerator.print(f"step {step + 1} loss {losses.mean():.6f} grad_norm {norms[0]:.6f}")
    owned = sum(owned_numel(param) for param in model.parameters())
    accelerator.print(f"{accelerator.distributed_type.value} on {accelerator.num_processes} ranks, each owns {owned}")
    accelerator.end_training()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may still be letting go of tensors; an interpreter that ends meanwhile is aborted


if __name__ == "__main__":
    main()
