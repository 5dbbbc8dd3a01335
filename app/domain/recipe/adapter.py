"""LoRA and QLoRA: which weights get an adapter, how many parameters that trains, how the frozen base is stored."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.model.architecture import Architecture, Role, Weight

ATTENTION_NAMES = frozenset(
    [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "qkv_proj",
        "query_key_value",
        "c_attn",
        "out_proj",
        "q_a_proj",
        "q_b_proj",
        "kv_a_proj_with_mqa",
        "kv_b_proj",
        "query",
        "key",
        "value",
        "q",
        "k",
        "v",
        "o",
        "wq",
        "wk",
        "wv",
        "wo",
        "Wqkv",
        "in_proj",
        "dense",
        "to_q",
        "to_k",
        "to_v",
        "to_out",
    ]
)
"""Last components of weight names that belong to attention, over all families."""

# NF4 stores 4 bits a weight, one 8-bit scale for 64 weights and one fp32 for 256 scales (double quantisation):
# 4 + 8/64 + 32/(64·256) bits. int8 keeps one fp32 scale a row, which is negligible beside the row.
_BASE_BYTES = {4: (4 + 8 / 64 + 32 / (64 * 256)) / 8, 8: 1.0 + 4 / 4096, 16: 2.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A low-rank adapter.

    Attributes:
        kind: ``lora`` or ``qlora`` (quantised frozen base).
        rank: r of the two factors.
        targets: ``all-linear``, ``attention`` or names of modules.
        base_bits: bits of one stored base weight under qlora.
        dropout: probability; above 0 every target keeps its own dropped input.
        dtype: dtype of the adapter weights; None = the framework's default.
        modules_to_save: modules trained in full beside the adapter.
    """

    kind: str
    rank: int = 16
    targets: str | tuple[str, ...] = "all-linear"
    base_bits: int = 4
    dropout: float = 0.0
    dtype: str | None = None
    modules_to_save: tuple[str, ...] = ()

    def covers(self, weight: Weight) -> bool:
        """Whether this weight gets an adapter; only dense layers inside blocks can."""
        if weight.role is not Role.LINEAR or len(weight.shape) != 2:
            return False
        name = weight.name.rsplit(".", 1)[-1]
        if self.targets == "all-linear":
            # A router is a module of its own in current libraries, not a dense layer that adapters look for.
            return "router" not in weight.name
        if self.targets == "attention":
            return name in ATTENTION_NAMES
        return name in self.targets


def base_weight_bytes(bits: int) -> float:
    """Bytes one quantised weight takes, its share of the block constants included.

    Equation: (bits + 8/64 + 32/(64·256)) / 8 for NF4 with double quantisation.

    Source: Dettmers et al., QLoRA, section 3.

    Example:
        >>> round(base_weight_bytes(4), 4)
        0.5159
    """
    return _BASE_BYTES[bits]


def adapter_params(model: Architecture, adapter: Adapter) -> int:
    """Parameters of the low-rank factors: rank · (in + out) for every covered layer.

    Example: a 4096 × 4096 projection at rank 16 adds 16 · 8192 = 131,072.
    """
    return sum(adapter.rank * sum(w.shape) * w.copies * s.owned for s in model.stacks for w in s.block.weights if adapter.covers(w))


def saved_module_params(model: Architecture, adapter: Adapter) -> int:
    """Parameters of the modules trained in full beside the adapter (a trainable copy of each is made)."""
    names = {n.rsplit(".", 1)[-1] for n in adapter.modules_to_save}
    saved = sum(w.numel for w in model.weights if w.name.rsplit(".", 1)[-1] in names)
    tied_head = model.tied_embeddings and "lm_head" in names and "embed_tokens" not in names
    return saved + (model.vocab_size * model.hidden_size if tied_head else 0)


def quantised_params(model: Architecture) -> int:
    """Parameters bitsandbytes quantises: every dense layer inside the blocks, not embeddings, norms or the head."""
    return sum(
        w.numel * s.owned for s in model.stacks for w in s.block.weights if w.role in (Role.LINEAR, Role.EXPERT) and len(w.shape) >= 2
    )
