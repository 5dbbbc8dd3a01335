"""Bytes of saved activations per token and block, by what the block is made of and how it is computed.

Coefficients were counted on saved tensors of transformers blocks, operation by operation (tests/papers/test_activations.py).
Symbols: h hidden_size, q query width, kv key/value width, f ffn_hidden_size, a num_heads, s sequence length.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.model.architecture import Attention, Block, Mlp, Moe, Numerics, Role, Weight
from app.domain.recipe.adapter import Adapter

_PLAIN = Numerics()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """How blocks are computed.

    Attributes:
        bytes: width of the compute dtype.
        autocast: operations cast one by one over fp32 weights and a fp32 residual stream.
        kernel: flash, sdpa or eager.
        seq_len: tokens a query can see.
        adapter: low-rank adapter, if any; its frozen base keeps less for backward.
        tiled_mlp: the feed-forward is recomputed in tiles.
        compiled: element-wise results are recomputed by the compiler instead of kept.
        numerics: habits of the implementation.
    """

    bytes: float
    autocast: bool
    kernel: str
    seq_len: int
    adapter: Adapter | None
    tiled_mlp: bool
    compiled: bool = False
    numerics: Numerics = _PLAIN

    @property
    def wide(self) -> bool:
        """Computing in 4-byte floats."""
        return self.bytes == 4

    @property
    def wide_residual(self) -> bool:
        """The residual stream is fp32: computing in it, autocast over it, or a quantised base whose norms were prepared in it."""
        return self.wide or self.autocast


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Bytes per token of one block: everything kept, and what each checkpointing policy keeps."""

    none: float
    selective: float
    full: float


def saved_per_token(block: Block, compute: Compute) -> Saved:
    """Saved activations of one block in bytes per token.

    Equation: norms + attention + feed-forward (+ adapter), e.g. 16h + 4q + 4kv + 8f + 4a for Llama in bf16 with flash.

    Source: counted under transformers 5.24; Korthikanti et al. for the classic 34h + 5as of GPT with eager attention.

    Example: Llama-2-7B: 16·4096 + 8·4096 + 8·11008 + 4·32 bytes.
        >>> from app.domain.model.architecture import Attention, Block, Mlp
        >>> llama = Block(hidden_size=4096, weights=(), mlp=Mlp(ffn_hidden_size=11008, gated=True),
        ...     attention=Attention(num_heads=32, num_kv_heads=32, head_dim=128, v_head_dim=128))
        >>> saved_per_token(llama, Compute(bytes=2, autocast=False, kernel="flash", seq_len=4096, adapter=None, tiled_mlp=False)).none
        186496.0
    """
    mlp = 0.0 if compute.tiled_mlp else mlp_saved(block, compute)
    everything = norms_saved(block, compute) + mixed_saved(block, compute) + mlp + adapter_saved(block, compute)
    boundary = (4 if compute.wide_residual else 2) * block.hidden_size
    return Saved(none=everything, selective=min(everything, _selective(block, compute)), full=float(boundary))


def mixed_saved(block: Block, compute: Compute) -> float:
    """What mixes tokens: attention with the norms of its queries and keys, cross-attention, a state-space mixer."""
    parts = [a for a in (block.attention, block.cross_attention) if a]
    attention = sum(attention_saved(a, compute, dropout=block.dropout) for a in parts)
    return attention + qk_norms_saved(block, compute) + ssm_saved(block, compute)


def norms_saved(block: Block, compute: Compute) -> float:
    """Normalisations and residuals.

    RMS keeps its fp32 input, the normalised tensor (for the scale's gradient) and its output (the next layer's input); a frozen
    one only the input. Layer norm keeps input and output; parallel branches share the input. Autocast adds a cast of the
    input for every dense layer that reads it.
    """
    h, norms = block.hidden_size, block.num_norms
    if block.norm == "rms":
        each = 12 if compute.wide else 4 if compute.adapter or compute.compiled else 8
        # Two norms feed dense layers; Gemma's fp32 product makes the tensor kept for the scale twice as wide there.
        extra = 2 * _readers(block) if compute.autocast else 4 if compute.numerics.wide_norms and not compute.wide else 0
        return float(h * (each * norms + extra))
    if block.parallel_residual and not compute.compiled:
        output = 4 if compute.wide else 2
        return float(h * ((4 if compute.wide_residual else 2) + output * norms + (2 if block.dropout else 0)))
    each = 8 if compute.wide else 2 if compute.compiled else 4
    casts = (2 if block.parallel_residual else 8) if compute.autocast else 0
    masks = 2 if block.dropout else 0
    return float(h * (each * norms + casts + masks))


def attention_norms_saved(block: Block, compute: Compute) -> float:
    """The part of ``norms_saved`` that attention's backward still needs when the feed-forward's is through."""
    every, h = norms_saved(block, compute), block.hidden_size
    if block.norm == "rms" and compute.autocast:
        return (every - 2 * h * _readers(block)) / 2 + 2 * h * _readers(block, "attention input")
    if block.parallel_residual and block.norm == "layer":
        return every - (4 if compute.wide else 2) * h * (block.num_norms - 1)
    return every / 2


def _readers(block: Block, what: str = "input") -> int:
    """Dense layers that read a norm's output: five in a Llama block, two where q/k/v and gate/up are one matrix each."""
    if block.moe:
        return 3 if what == "attention input" else 5
    return sum(_reads(w).endswith(what) for w in block.weights if w.role is Role.LINEAR and len(w.shape) == 2)


def qk_norms_saved(block: Block, compute: Compute) -> float:
    """Norms over queries and keys: the fp32 copy of the projection, and the normalised tensor for the scale's gradient.

    Equation: 6(q + kv) in 16 bits; the output is not kept, as rotation needs no input of its own. Frozen: 4(q + kv).
    """
    names = {w.name.rsplit(".", 1)[-1] for w in block.weights if w.role is Role.NORM}
    attention = block.attention
    if attention is None or not names & {"q_norm", "k_norm"}:
        return 0.0
    heads = attention.num_heads * ("q_norm" in names) + attention.num_kv_heads * ("k_norm" in names)
    if block.norm == "layer":
        return compute.bytes * heads * attention.head_dim
    frozen, wide = compute.adapter is not None or compute.compiled, compute.wide or compute.numerics.wide_norms
    return float((4 if frozen else 8 if wide else 6) * heads * attention.head_dim)


def attention_saved(attention: Attention, compute: Compute, *, dropout: bool = False) -> float:
    """Attention: queries, keys, values and output; the scores only where the kernel stores them."""
    q = attention.num_heads * attention.head_dim
    kv = attention.num_kv_heads * attention.head_dim
    v = attention.num_kv_heads * attention.v_head_dim
    out = attention.num_heads * attention.v_head_dim
    a, b = attention.num_heads, compute.bytes
    if attention.kind == "linear":
        return 3 * b * (q + kv + v) + b * out
    if attention.kind == "latent":
        # Keys and values are expanded for every head and the low-rank inputs are kept as well.
        return b * (2 * q + 2 * attention.num_heads * attention.v_head_dim + 3 * attention.latent_dim) + b * out + 4 * a
    grouped = attention.num_kv_heads != attention.num_heads
    # Values cut from one q/k/v projection keep all of it alive, unless they are expanded into a copy.
    whole = b * (q + kv) if attention.fused_rotary else 0.0
    if stores_scores(attention, compute):
        return 4 * b * q + whole * (not grouped) + score_bytes(compute, dropout=dropout) * a * compute.seq_len
    masked = compute.kernel == "sdpa" and attention.window is not None and compute.seq_len >= attention.window
    if masked and not compute.wide:
        return 4 * b * q + whole * (not grouped) + 4 * a + 2 * compute.seq_len
    # Queries rotated by concatenation lie by head, and so does the flash kernel's output: the next projection reads a copy.
    copied = b * out if attention.fused_rotary and not compute.wide else 0.0
    return b * (q + kv + v + out) + whole + copied + 4 * a


def stores_scores(attention: Attention, compute: Compute) -> bool:
    """Eager attention stores its scores, and so does sdpa where no fused kernel takes it: fp32 with grouped keys."""
    grouped = attention.num_kv_heads != attention.num_heads
    return attention.kind == "grouped" and (compute.kernel == "eager" or (compute.kernel == "sdpa" and compute.wide and grouped))


def score_bytes(compute: Compute, *, dropout: bool) -> float:
    """Bytes eager attention keeps for one score: the softmax, its cast, and with dropout a mask and the dropped copy.

    Models without dropout take the softmax in fp32 and cast it; with dropout it is taken in the compute dtype.
    """
    if dropout:
        return 9.0 if compute.wide else 7.0 if compute.autocast else 5.0
    return (4.0 if compute.wide else 6.0) + (2.0 if compute.numerics.softcapped_scores else 0.0)


def mlp_saved(block: Block, compute: Compute) -> float:
    """Feed-forward: gated keeps gate, activation, up and product; plain keeps the product and the activation."""
    b = compute.bytes
    if block.moe:
        return _moe_saved(block.moe, block.hidden_size, b)
    if not block.mlp:
        return 0.0
    spelled = 0.0
    if compute.numerics.spelled_activation and not block.mlp.gated:
        spelled = 12.0 if compute.wide else 11.0 if compute.autocast else 6.0
    # A frozen down projection does not need its input for backward; an adapter on it may (adapter_saved).
    # A compiler recomputes the product from its factors, and a plain activation from its input.
    unneeded = b * block.mlp.ffn_hidden_size if compute.adapter or compute.compiled else 0.0
    return _mlp(block.mlp, b) + spelled * block.mlp.ffn_hidden_size - unneeded


def _mlp(mlp: Mlp, b: float) -> float:
    return (4 if mlp.gated else 2) * b * mlp.ffn_hidden_size


def _moe_saved(moe: Moe, hidden_size: int, b: float) -> float:
    """Routed copies of the token for every chosen expert, their feed-forward, the shared one and the router's probabilities."""
    expert = _mlp(Mlp(ffn_hidden_size=moe.expert_ffn_hidden_size, gated=moe.gated), b)
    shared = _mlp(Mlp(ffn_hidden_size=moe.shared_ffn_hidden_size, gated=moe.gated), b)
    return moe.experts_per_token * (expert + 2 * b * hidden_size) + shared + 12 * moe.num_experts


def ssm_saved(block: Block, compute: Compute) -> float:
    """State-space mixer: input and gate branches, convolution, its activation, time steps and the scan's inputs."""
    if not block.ssm:
        return 0.0
    return compute.bytes * (8 * block.ssm.inner_size + 4 * block.ssm.state_size)


_OUTPUTS = frozenset(["o_proj", "out_proj", "dense", "c_proj", "wo", "to_out", "o"])
_DOWNS = frozenset(["down_proj", "fc2", "w2", "dense_4h_to_h", "fc_out"])
_INPUTS_OF_MLP = frozenset(["gate_proj", "up_proj", "gate_up_proj", "fc1", "w1", "w3", "c_fc", "dense_h_to_4h", "fc_in"])


def adapter_saved(block: Block, compute: Compute) -> float:
    """What an adapter adds: its low-rank activations and the inputs its factors need.

    Without dropout layers that read one tensor share it, and the attention output is kept anyway. With dropout every
    target keeps a mask and a dropped copy of its own.
    """
    adapter = compute.adapter
    if adapter is None:
        return 0.0
    covered = [w for w in block.weights if adapter.covers(w)]
    width = compute.bytes
    low_rank = width * adapter.rank * sum(w.copies for w in covered)
    if adapter.dropout > 0:
        return low_rank + (1 + width) * sum(w.shape[-1] * w.copies for w in covered)
    read = {_reads(w): w.shape[-1] for w in covered}
    return low_rank + width * sum(size for tensor, size in read.items() if tensor != "attention output")


def first_block_unsaved(block: Block, compute: Compute) -> float:
    """What the first block of an adapted model does not keep: the embedding below is frozen, so its input needs no gradient.

    Equation: the input of the first norm, and with dropout a mask for every adapter that reads that norm's output.
    """
    adapter, h = compute.adapter, block.hidden_size
    if adapter is None or block.norm == "none":
        return 0.0
    readers = [w for w in block.weights if adapter.covers(w) and _reads(w) == "attention input"]
    norm = 4 if block.norm == "rms" else compute.bytes
    return float(h * (norm + (sum(w.copies for w in readers) if adapter.dropout > 0 else 0)))


def _reads(weight: Weight) -> str:
    """The tensor a covered layer reads."""
    name = weight.name.rsplit(".", 1)[-1]
    if name in _OUTPUTS:
        return "attention output"
    if name in _DOWNS:
        return "feed-forward product"
    return "feed-forward input" if name in _INPUTS_OF_MLP else "attention input"


def _selective(block: Block, compute: Compute) -> float:
    """Attention outputs and every second matmul are kept; the rest is recomputed.

    Equation: 4h + 4q + 2kv + 2f + 4a. Grouped products of routed experts are not among the operations kept.
    """
    h, b = block.hidden_size, compute.bytes
    total = (4 if compute.wide_residual else 2) * 2.0 * h
    if block.attention:
        total += b * (2 * block.attention.num_heads * block.attention.head_dim + block.attention.num_kv_heads * block.attention.head_dim)
        total += 4 * block.attention.num_heads
    if block.mlp:
        total += b * block.mlp.ffn_hidden_size
    return total
