"""Allocations that follow the parameters: partitions of the optimizer, flat copies, buckets, gathers, single weights."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.diagnose.situation import Situation, Tensor, in_words, over
from app.domain.model import parameters as count
from app.domain.model.architecture import Role, Weight

_INIT, _LOAD, _SAVE = "initialisation", "load", "save"
_BACKWARD = ("backward", "reduction")
_ADAM = ("exp_avg", "exp_avg_sq", "optimizer")


def state_tensors(s: Situation) -> Iterator[Tensor]:
    """Every allocation of this kind that the run can make."""
    for part, params in _trained(s):
        if "deepspeed" in s.frameworks:
            yield from _deepspeed(s, part, params)
        if s.frameworks & {"fsdp2", "ddp"} and params == s.numbers.trainable:
            yield from _units(s)
    yield from _whole(s)
    yield from _buckets(s)
    for weight in _weights(s):
        yield from _of_weight(s, weight)


def _trained(s: Situation) -> Iterator[tuple[str, float]]:
    """What may be trained: all of it, or of a model with a tower its language part."""
    params = s.numbers.trainable / s.model_ranks
    yield "P", params
    others = sum(count.block_params(stack.block) * stack.owned for stack in s.model.stacks if stack.part == "vision")
    if others and not s.adapter:
        yield "P (language part, the tower frozen)", params - others / s.model_ranks


def _partition(part: str, params: float, width: int, ranks: int) -> tuple[float, str]:
    words, number = over(ranks)
    return params * width / ranks, f"{part} × {width}{words} = {in_words(params)} × {width}{number}"


def _deepspeed(s: Situation, part: str, params: float) -> Iterator[Tensor]:
    stages = s.strategies & {"zero1", "zero2"}
    sure = 1.0 if part == "P" else 0.5
    if stages:
        yield from _stages12(s, part, params, sure)
    if "zero3" in s.strategies:
        yield from _stage3(s, part, params, sure)
    if "ddp" in s.strategies:
        size, arithmetic = _partition(part, params, 4, 1)
        yield Tensor(name="one fp32 copy of all weights (Adam moment or master)", bytes=size, arithmetic=arithmetic,
                     moments=(_INIT, "step"),
                     hints=(*_ADAM, "master", "flatten"), prior=0.8 * sure, category="optimizer_states")  # fmt: skip


def _stages12(s: Situation, part: str, params: float, sure: float) -> Iterator[Tensor]:
    size, arithmetic = _partition(part, params, 4, s.ranks)
    yield Tensor(name="one Adam moment of this rank's fp32 optimizer partition", bytes=size, arithmetic=arithmetic, moments=("step", _INIT),
                 hints=_ADAM, prior=1.0 * sure, category="optimizer_states")  # fmt: skip
    yield Tensor(name="fp32 master weights of this rank's optimizer partition", bytes=size, arithmetic=arithmetic, moments=(_INIT,),
                 hints=("master", "upcast"), prior=0.6 * sure, category="optimizer_states")  # fmt: skip
    yield Tensor(name="fp32 gradients of this rank's optimizer partition", bytes=size, arithmetic=arithmetic, moments=("step",),
                 hints=("flatten",), prior=0.4 * sure, category="gradients")  # fmt: skip
    size, arithmetic = _partition(part, params, 2, s.ranks)
    yield Tensor(name="flat 16-bit gradients of this rank's partition", bytes=size, arithmetic=arithmetic, moments=(*_BACKWARD, "step"),
                 hints=("flatten", "reduce"), prior=0.4 * sure, category="gradients")  # fmt: skip
    size, arithmetic = _partition(part, params, s.param_bytes, 1)
    yield Tensor(name="flat copy of all weights (flattening at start)", bytes=size, arithmetic=arithmetic, moments=(_INIT,),
                 hints=("flatten",), prior=0.6 * sure, category="parameters")  # fmt: skip
    size, arithmetic = _partition(part, params, 4, 1)
    if "zero1" in s.strategies:
        yield Tensor(name="fp32 gradients of all weights (stage 1 with fp32 accumulation)", bytes=size, arithmetic=arithmetic,
                     moments=(_INIT, "backward"), prior=0.25 * sure, category="gradients")  # fmt: skip


def _stage3(s: Situation, part: str, params: float, sure: float) -> Iterator[Tensor]:
    shard = params / s.ranks
    for sub_group in s.sub_groups:
        tile = min(float(sub_group), shard)
        # A sub-group closes with the tensor that reaches its limit, so it can be that tensor's shard larger.
        more = min(shard - tile, s.numbers.largest_tensor / s.model_ranks / s.ranks)
        words, number = over(s.ranks)
        arithmetic = f"{part} × 4{words} = {in_words(params)} × 4{number}"
        if tile < shard:
            arithmetic = f"sub_group_size × 4 = {in_words(tile)} × 4, up to one tensor's shard more"
        named = "sub-group's fp32 partition" if tile < shard else "fp32 optimizer partition (one sub-group)"
        yield Tensor(name=f"one Adam moment of this rank's {named}", bytes=tile * 4, most=(tile + more) * 4, arithmetic=arithmetic,
                     moments=("step", _INIT), hints=_ADAM, prior=1.0 * sure, category="optimizer_states")  # fmt: skip
        yield Tensor(name=f"fp32 master weights of this rank's {named}", bytes=tile * 4, most=(tile + more) * 4, arithmetic=arithmetic,
                     moments=(_INIT,), hints=("master", "upcast"), prior=0.6 * sure, category="optimizer_states")  # fmt: skip
        yield Tensor(name=f"fp32 gradients of this rank's {named}", bytes=tile * 4, most=(tile + more) * 4, arithmetic=arithmetic,
                     moments=("step",), hints=("upcast",), prior=0.5 * sure, category="gradients")  # fmt: skip
        yield Tensor(name="flattened gradients of one sub-group", bytes=tile * 2, most=(tile + more) * 2,
                     arithmetic=arithmetic.replace("4", "2", 1),
                     moments=("step",), hints=("flatten",), prior=0.3 * sure, category="gradients")  # fmt: skip
    size, arithmetic = _partition(part, params, 2, s.ranks)
    yield Tensor(name="flat 16-bit partition of this rank (weights, or the gradient buffer)", bytes=size, arithmetic=arithmetic,
                 moments=(_INIT,), hints=("flatten",), prior=0.6 * sure, category="parameters")  # fmt: skip


def _units(s: Situation) -> Iterator[Tensor]:
    """FSDP gathers and reduces a block, or what is outside the blocks, at a time; FSDP1 keeps each as one flat parameter."""
    outside = s.numbers.outside / s.model_ranks
    for what, params in (("block", s.numbers.block / s.model_ranks), ("root unit (embedding, final norm, head)", outside)):
        each, width = s.compute_bytes, s.param_bytes
        yield Tensor(name=f"gathered weights of one {what}", bytes=params * each,
                     arithmetic=f"P_unit × {each} = {in_words(params)} × {each}",
                     moments=("forward", "backward"), hints=("gather",), prior=0.5, category="parameters")  # fmt: skip
        yield Tensor(name=f"reduce-scatter input of one {what}", bytes=params * 4, arithmetic=f"P_unit × 4 = {in_words(params)} × 4",
                     moments=_BACKWARD, hints=("reduce",), prior=0.4, category="buffers")  # fmt: skip
        words, number = over(s.shard_ranks)
        yield Tensor(name=f"one Adam moment of the flat shard of one {what}", bytes=params * width / s.shard_ranks,
                     arithmetic=f"P_unit × {width}{words} = {in_words(params)} × {width}{number}", moments=("step",),
                     hints=(*_ADAM, "foreach"),
                     prior=0.3, category="optimizer_states")  # fmt: skip


def _whole(s: Situation) -> Iterator[Tensor]:
    """A whole model at once: a loader's warm-up, a copy in fp32, a gathered state dict."""
    total = s.numbers.total / s.model_ranks
    for width, said in ((2, "16 bits"), (4, "fp32")):
        arithmetic = f"P × {width} = {in_words(total)} × {width}"
        yield Tensor(name=f"the whole model in {said}, on one GPU", bytes=total * width, arithmetic=arithmetic, moments=(_LOAD, _INIT),
                     hints=("load", "upcast"), prior=0.5 if width == 2 else 0.4, category="parameters")  # fmt: skip
        yield Tensor(name=f"the gathered state dict in {said}", bytes=total * width, arithmetic=arithmetic, moments=(_SAVE,),
                     prior=0.3, category="parameters")  # fmt: skip
    if s.base_bytes < 2:
        size = total * s.base_bytes
        yield Tensor(name="the quantised base", bytes=size, arithmetic=f"P × {s.base_bytes:.3g} = {in_words(total)} × {s.base_bytes:.3g}",
                     moments=(_LOAD,), hints=("load", "dequantise"), prior=0.4, category="parameters")  # fmt: skip


def _buckets(s: Situation) -> Iterator[Tensor]:
    if "deepspeed" not in s.frameworks:
        return
    at_start = (_INIT,) if "zero3" in s.strategies else ()
    for numel in s.buckets:
        for width in sorted({2, s.compute_bytes, 4}):
            yield Tensor(name="gradient reduce bucket", bytes=numel * width,
                         arithmetic=f"reduce_bucket_size × {width} = {in_words(numel)} × {width}",
                         moments=(*_BACKWARD, *at_start), hints=("reduce",), prior=0.5 if width == 2 else 0.3)  # fmt: skip
    if "zero3" in s.strategies:
        for numel in s.prefetches:
            yield Tensor(name="flat buffer of parameters gathered ahead", bytes=numel * 2,
                         arithmetic=f"prefetch_bucket × 2 = {in_words(numel)} × 2",
                         moments=("forward", "backward"), hints=("gather",), prior=0.3, category="parameters")  # fmt: skip


def _weights(s: Situation) -> Iterator[Weight]:
    """One of each shape of weight, the large ones; those of the same size are told apart by nothing."""
    seen = set()
    for weight in (*s.model.weights, *(w for stack in s.model.stacks for w in stack.block.weights)):
        numel = weight.numel // weight.copies
        if numel not in seen and numel * 2 >= 2**20:
            seen.add(numel)
            yield weight


def _of_weight(s: Situation, weight: Weight) -> Iterator[Tensor]:
    numel, name = weight.numel / weight.copies / s.tp, weight.name.replace("_", " ")
    shape = " × ".join(in_words(side) for side in weight.shape) + over(s.tp, "tensor ranks")[0]
    ends = weight.role in (Role.EMBEDDING, Role.HEAD)
    prior, hints = (0.35, ("embedding", "head")) if ends else (0.12, ("experts",) if weight.role is Role.EXPERT else ())
    sharded = bool(s.strategies & {"zero3", "fsdp_full", "fsdp_grad_op", "hsdp"})
    frozen = s.adapter and not ends
    if sharded:
        yield Tensor(name=f"gathered weight {name}", bytes=numel * s.compute_bytes, arithmetic=f"{shape} × {s.compute_bytes}",
                     moments=("forward", "backward"), hints=("gather", *hints), prior=prior, category="parameters")  # fmt: skip
    if s.base_bytes < 2 and weight.role is Role.LINEAR:
        yield Tensor(name=f"dequantised weight {name}", bytes=numel * s.compute_bytes, arithmetic=f"{shape} × {s.compute_bytes}",
                     moments=("forward", "backward"), hints=("dequantise",), prior=0.3)  # fmt: skip
    yield Tensor(name=f"fp32 copy of weight {name}", bytes=numel * 4, arithmetic=f"{shape} × 4", moments=(_LOAD, _INIT),
                 hints=("upcast", *hints), prior=prior / 2, category="parameters")  # fmt: skip
    yield Tensor(name=f"weight {name}", bytes=numel * s.compute_bytes, arithmetic=f"{shape} × {s.compute_bytes}", moments=(_LOAD,),
                 hints=("load", *hints), prior=prior / 2, category="parameters")  # fmt: skip
    if frozen:
        return
    for width in sorted({s.compute_bytes, s.param_bytes}):
        yield Tensor(name=f"gradient of {name}", bytes=numel * width, arithmetic=f"{shape} × {width}", moments=_BACKWARD, hints=hints,
                     prior=prior, category="gradients")  # fmt: skip
    if "deepspeed" in s.frameworks and ends:
        yield Tensor(name=f"fp64 copy of the gradient of {name}, for the norm", bytes=numel * 8, arithmetic=f"{shape} × 8",
                     moments=("step",),
                     hints=("norm",), prior=0.3)  # fmt: skip
    if s.frameworks & {"fsdp2", "ddp"}:
        words, _ = over(s.shard_ranks if sharded else 1)
        ranks = s.shard_ranks if sharded else 1
        yield Tensor(name=f"one Adam moment of {name}", bytes=numel * s.param_bytes / ranks, arithmetic=f"{shape} × {s.param_bytes}{words}",
                     moments=("step",), hints=(*_ADAM, "foreach", *hints), prior=prior, category="optimizer_states")  # fmt: skip
