"""Counts what a training process really sends, and the bytes it really keeps, for tests that hold a plan against them.

Every collective of torch ends in an operator of its dispatcher: the plain calls, the ``*_into_tensor`` and coalesced ones
that DeepSpeed and FSDP2 make, the functional ones of DTensor, and those DDP's reducer makes in C++. They are counted there.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

CONTROL_NUMEL = 32
"""Loss, token count, gradient norms and overflow flag: messages of so few elements are not what a plan counts."""

# Which argument is the whole message: what a gather makes, what a reduction or a broadcast starts from.
_PLAIN = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "_allgather_base_": ("all_gather", 0),
    "allgather_": ("all_gather", 0),
    "allgather_coalesced_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "reduce_": ("reduce", 0),
    "broadcast_": ("broadcast", 0),
    "alltoall_base_": ("all_to_all", 1),
    "alltoall_": ("all_to_all", 1),
    "scatter_": ("scatter", 1),
    "gather_": ("gather", 0),
    "send": ("send", 0),
}
_FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
    "all_to_all_single": "all_to_all",
}
_SILENT = ("wait_tensor", "_wrap_tensor_autograd", "barrier", "monitored_barrier_")


class Collectives(TorchDispatchMode):
    """Tally of collectives while it is entered: calls and payload by kind and ranks of the group.

    The payload of a call is its whole message: the gathered tensor, or the one that is reduced.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        """Forget what was counted."""
        self.calls: dict[str, int] = defaultdict(int)
        self.payload: dict[str, int] = defaultdict(int)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # it is taken apart first, and its collectives come by
        out = func(*args, **(kwargs or {}))
        space, _, name = str(getattr(func, "_schema", func)).partition("(")[0].partition("::")
        name = name.partition(".")[0]
        if space == "c10d" and name in _PLAIN:
            kind, place = _PLAIN[name]
            self._add(kind, _ranks_of(args), args[place])
        elif space in ("_c10d_functional", "_c10d_functional_autograd") and name in _FUNCTIONAL:
            kind = _FUNCTIONAL[name]
            group = dist.distributed_c10d._resolve_process_group(next(a for a in reversed(args) if isinstance(a, str)))
            self._add(kind, group.size(), out if kind == "all_gather" else args[0])
        elif space in ("c10d", "_c10d_functional") and name not in _SILENT:
            raise AssertionError(f"{func} is a collective this tally does not know")
        return out

    def _add(self, kind: str, ranks: int, message: Any) -> None:
        tensors = list(tensors_in(message))
        if sum(tensor.numel() for tensor in tensors) <= CONTROL_NUMEL:
            kind = f"control {kind}"
        self.calls[f"{kind} over {ranks}"] += 1
        self.payload[f"{kind} over {ranks}"] += sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _ranks_of(args: Iterable[Any]) -> int:
    for argument in args:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            return int(dist.ProcessGroup.unbox(argument).size())
        if isinstance(argument, dist.ProcessGroup):
            return int(argument.size())
    raise AssertionError("no process group among the arguments")


def tensors_in(owner: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested lists, tuples and dicts; of a DTensor its local part, of a ZeRO-3 parameter its partition."""
    if isinstance(owner, torch.Tensor):
        yield owner.to_local() if isinstance(owner, DTensor) else owner
    elif isinstance(owner, dict):
        for value in owner.values():
            yield from tensors_in(value)
    elif isinstance(owner, list | tuple | set):
        for value in owner:
            yield from tensors_in(value)


def kept_bytes(owners: dict[str, Callable[[], Any]], before: set[int]) -> dict[str, int]:
    """Bytes of the distinct storages of each owner, in order: a storage that two of them share belongs to the first.

    ``rest`` is every other storage that is alive, without those that were there ``before``.
    """
    seen: set[int] = set()
    out = {name: _fresh_bytes(tensors_in(owner()), seen) for name, owner in owners.items()}
    seen |= before
    out["rest"] = _fresh_bytes(_alive(), seen)
    return out


def alive_storages() -> set[int]:
    """Addresses of every storage there is."""
    seen: set[int] = set()
    _fresh_bytes(_alive(), seen)
    return seen


def _alive() -> list[torch.Tensor]:
    gc.collect()
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor) and type(thing) is not DTensor]


def _fresh_bytes(tensors: Iterable[torch.Tensor], seen: set[int]) -> int:
    total = 0
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_meta:
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen and storage.nbytes():
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def torch_owners(model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Callable[[], Any]]:
    """Where a DDP or FSDP2 script keeps its states."""
    return {
        "parameters": lambda: [param.data for param in model.parameters()],
        "gradients": lambda: [param.grad for param in model.parameters()],
        "optimizer states": lambda: [large_of(optimizer.state) for optimizer in optimizers],
    }


def deepspeed_owners(engine: Any) -> dict[str, Callable[[], Any]]:
    """Where DeepSpeed keeps them, under whichever of its four optimizers runs."""
    zero, params = engine.optimizer, list(engine.module.parameters())
    inner = getattr(zero, "optimizer", zero)
    grads = ("averaged_gradients", "all_grad_tensors", "grad_partitions_flat_buffer", "fp32_groups_gradients_flat")
    flat = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition", "fp32_groups_flat")
    masters = (*flat, "fp32_groups")
    return {
        "parameters": lambda: [getattr(param, "ds_tensor", param) for param in params],
        "gradients": lambda: [[getattr(zero, name, None) for name in grads], [param.grad for param in params]],
        "master weights": lambda: [getattr(zero, name, None) for name in masters],
        "optimizer states": lambda: large_of(inner.state),
    }


def large_of(state: Any) -> list[torch.Tensor]:
    """Moments, without step counters."""
    return [tensor for tensor in tensors_in(dict(state)) if tensor.numel() > 1]
