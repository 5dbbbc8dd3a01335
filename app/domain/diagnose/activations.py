"""Allocations that follow the tokens of a micro-batch: logits, scores, feed-forward and norms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from app.domain.diagnose.situation import Situation, Tensor, in_words, over
from app.domain.model.architecture import Attention, Block

_FORWARD, _LOSS, _BLOCK = ("forward",), ("loss", "backward", "forward"), ("forward", "backward")


class Width(NamedTuple):
    """Something each token has: elements, bytes of one, and what it is called."""

    name: str
    symbol: str
    elements: float
    bytes_each: int
    moments: tuple[str, ...]
    hints: tuple[str, ...]
    prior: float
    category: str = "activations"


def activation_tensors(s: Situation) -> Iterator[Tensor]:
    """Every allocation of this kind; those of a batch or length that nobody said have no size yet, only one for each token."""
    for width in (*_logits(s), *_per_token(s)):
        yield _of_tokens(s, width)
    yield from _scores(s)
    yield from _towers(s)


def _of_tokens(s: Situation, w: Width) -> Tensor:
    each, tokens = w.elements * w.bytes_each, s.tokens
    size, arithmetic = 0.0, f"tokens × {w.symbol} × {w.bytes_each}"
    if tokens is not None:
        size = tokens * each
        split, number = over(s.sp, "sequence ranks")
        figures = f"{s.micro_batch} × {in_words(s.seq_len or 0)} × {in_words(w.elements)} × {w.bytes_each}{number}"
        arithmetic = f"B × S × {w.symbol} × {w.bytes_each}{split} = {figures}"
    # The loss drops the last position of each sequence, or the first.
    least = size - (s.micro_batch or 0) * each if w.category == "logits" and size else 0.0
    return Tensor(name=w.name, bytes=size, least=least, arithmetic=arithmetic, moments=w.moments, hints=w.hints, prior=w.prior,
                  category=w.category, per_token=each)  # fmt: skip


def _logits(s: Situation) -> Iterator[Width]:
    vocab = s.model.vocab_size
    if not vocab:
        return
    for elements, symbol in {(vocab, "V"), (vocab / s.tp, f"V{over(s.tp, 'tensor ranks')[0]}")}:
        yield Width(
            "logits in fp32 (their copy, log-softmax or its gradient)",
            symbol,
            elements,
            4,
            _LOSS,
            ("loss", "upcast", "head"),
            0.9,
            "logits",
        )
        if s.compute_bytes != 4:
            yield Width(
                "logits in 16 bits", symbol, elements, s.compute_bytes, ("forward", "loss", "backward"), ("head", "loss"), 0.5, "logits"
            )


def _per_token(s: Situation) -> Iterator[Width]:
    block, b = s.model.main_block, s.compute_bytes
    hidden = block.hidden_size
    yield Width("hidden states of one layer", "h", hidden, b, _BLOCK, ("norms",), 0.15)
    yield Width("hidden states of one layer in fp32", "h", hidden, 4, _BLOCK, ("norms", "upcast"), 0.2)
    yield Width("checkpointed inputs of all layers", "L × h", s.model.num_layers * hidden, b, _FORWARD, (), 0.08)
    if block.attention:
        yield from _attention_widths(s, block.attention)
    for other in {stack.block for stack in s.model.stacks if stack.part == "main"}:
        yield from _feed_forward(other, s)


def _attention_widths(s: Situation, a: Attention) -> Iterator[Width]:
    heads, b = a.num_heads / s.tp, s.compute_bytes
    yield Width("queries of one layer, or keys repeated for every head", "H × d", heads * a.head_dim, b, _BLOCK, ("repeat_kv",), 0.12)
    yield Width(
        "fused queries, keys and values of one layer",
        "(H + 2K) × d",
        (a.num_heads + 2 * a.num_kv_heads) / s.tp * a.head_dim,
        b,
        _BLOCK,
        (),
        0.1,
    )
    yield Width(
        "key/value cache of all layers",
        "2 × L × K × d",
        2 * s.model.num_layers * a.num_kv_heads * a.head_dim,
        b,
        _FORWARD,
        ("cache",),
        0.05,
    )


def _feed_forward(block: Block, s: Situation) -> Iterator[Width]:
    b = s.compute_bytes
    if block.mlp:
        ffn = block.mlp.ffn_hidden_size / s.tp
        yield Width("intermediate of one feed-forward (gate, up or activation)", "ffn", ffn, b, _BLOCK, ("mlp",), 0.4)
        yield Width("intermediate of one feed-forward in fp32", "ffn", ffn, 4, _BLOCK, ("mlp", "upcast"), 0.15)
        if block.mlp.gated:
            yield Width("fused gate and up of one feed-forward", "2 × ffn", 2 * ffn, b, _BLOCK, ("mlp",), 0.2)
    if block.moe:
        moe, each = block.moe, block.moe.expert_ffn_hidden_size
        yield Width("tokens copied to their experts", "k × h", moe.experts_per_token * block.hidden_size, b, _BLOCK, ("experts",), 0.25)
        yield Width("intermediate of the routed experts", "k × ffn_e", moe.experts_per_token * each, b, _BLOCK, ("experts", "mlp"), 0.3)
        yield Width(
            "fused gate and up of the routed experts", "2 × k × ffn_e", 2 * moe.experts_per_token * each, b, _BLOCK, ("experts", "mlp"), 0.2
        )


def _scores(s: Situation) -> Iterator[Tensor]:
    attention = s.model.main_block.attention
    if attention is None or attention.kind == "linear":
        return
    heads = attention.num_heads / s.tp / s.sp
    usual = 0.9 if s.eager else 0.1
    widths = sorted({s.compute_bytes, 4}, reverse=True)
    for width in widths:
        said = "fp32" if width == 4 else "16 bits"
        yield _square(s, f"attention scores in {said} (eager attention)", ("H", heads, width), usual if width == 4 else 0.7 * usual)
    for width in (*widths, 1):
        yield _square(s, "attention mask", ("1", 1.0, width), 0.08 * usual)


def _square(s: Situation, name: str, shape: tuple[str, float, int], prior: float) -> Tensor:
    symbol, rows, width = shape
    size, arithmetic = 0.0, f"B × {symbol} × S × S × {width}"
    if s.micro_batch is not None and s.seq_len is not None:
        size = s.micro_batch * rows * s.seq_len**2 * width
        arithmetic += f" = {s.micro_batch} × {in_words(rows)} × {in_words(s.seq_len)} × {in_words(s.seq_len)} × {width}"
    return Tensor(name=name, bytes=size, arithmetic=arithmetic, moments=_BLOCK, hints=("attention",), prior=prior, category="activations",
                  per_square=rows * width)  # fmt: skip


def _towers(s: Situation) -> Iterator[Tensor]:
    """The same of stacks that work on a sequence of their own, such as image patches."""
    if s.micro_batch is None:
        return
    batch = s.micro_batch
    for stack in s.model.stacks:
        if stack.tokens is None:
            continue
        block, tokens = stack.block, stack.tokens
        if block.mlp:
            size = batch * tokens * block.mlp.ffn_hidden_size * s.compute_bytes
            figures = f"{batch} × {in_words(tokens)} × {in_words(block.mlp.ffn_hidden_size)} × {s.compute_bytes}"
            text = f"B × tokens × ffn × {s.compute_bytes} = {figures}"
            yield Tensor(name=f"intermediate of one feed-forward of the {stack.part} part", bytes=size, arithmetic=text, moments=_BLOCK,
                         hints=("mlp",), prior=0.2, category="activations")  # fmt: skip
        if block.attention:
            size = batch * block.attention.num_heads * tokens**2 * 4
            text = f"B × H × tokens² × 4 = {batch} × {block.attention.num_heads} × {in_words(tokens)}² × 4"
            yield Tensor(name=f"attention scores of the {stack.part} part", bytes=size, arithmetic=text, moments=_BLOCK,
                         hints=("attention",), prior=0.1 if not s.eager else 0.4, category="activations")  # fmt: skip
