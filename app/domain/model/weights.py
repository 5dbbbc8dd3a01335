"""Builders for the groups of weight tensors that most families share.

Symbols of the field: h hidden_size, a num_heads, k num_kv_heads, d head_dim, f ffn_hidden_size, E num_experts.
"""

from __future__ import annotations

from app.domain.model.architecture import Attention, Moe, Role, Weight


def norm(name: str, size: int, *, bias: bool = False) -> tuple[Weight, ...]:
    """A normalisation over ``size`` elements: a scale, and a shift where ``bias``."""
    scale = Weight(name, (size,), Role.NORM)
    return (scale, Weight(f"{name}.bias", (size,), Role.NORM)) if bias else (scale,)


def linear(name: str, out_features: int, in_features: int, *, bias: bool = False) -> tuple[Weight, ...]:
    """A dense layer of ``out_features`` × ``in_features``, with its bias where it has one."""
    matrix = Weight(name, (out_features, in_features))
    return (matrix, Weight(f"{name}.bias", (out_features,), Role.BIAS)) if bias else (matrix,)


def grouped_attention(
    hidden_size: int, attention: Attention, *, qkv_bias: bool = False, out_bias: bool = False, prefix: str = ""
) -> tuple[Weight, ...]:
    """Separate q, k, v and output projections of MHA, GQA or MQA.

    Equation: h·d·(2a + 2k); biases d·(a + 2k) on q, k, v and h on the output.
    """
    q, kv = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    return (
        *linear(f"{prefix}q_proj", q, hidden_size, bias=qkv_bias),
        *linear(f"{prefix}k_proj", kv, hidden_size, bias=qkv_bias),
        *linear(f"{prefix}v_proj", attention.num_kv_heads * attention.v_head_dim, hidden_size, bias=qkv_bias),
        *linear(f"{prefix}o_proj", hidden_size, attention.num_heads * attention.v_head_dim, bias=out_bias),
    )


def gated_mlp(hidden_size: int, ffn_hidden_size: int, *, bias: bool = False, prefix: str = "") -> tuple[Weight, ...]:
    """SwiGLU or GeGLU feed-forward.

    Equation: 3·h·f; biases 2·f + h.
    """
    return (
        *linear(f"{prefix}gate_proj", ffn_hidden_size, hidden_size, bias=bias),
        *linear(f"{prefix}up_proj", ffn_hidden_size, hidden_size, bias=bias),
        *linear(f"{prefix}down_proj", hidden_size, ffn_hidden_size, bias=bias),
    )


def plain_mlp(hidden_size: int, ffn_hidden_size: int, *, bias: bool = False, prefix: str = "") -> tuple[Weight, ...]:
    """Two-matrix feed-forward.

    Equation: 2·h·f; biases f + h.
    """
    return (
        *linear(f"{prefix}up_proj", ffn_hidden_size, hidden_size, bias=bias),
        *linear(f"{prefix}down_proj", hidden_size, ffn_hidden_size, bias=bias),
    )


def experts(hidden_size: int, moe: Moe, *, router_bias: bool = False, shared_gate: bool = False) -> tuple[Weight, ...]:
    """Router, routed experts (stored as one tensor per matrix, as transformers 5 does) and shared experts.

    Equation: E·3·h·f_expert + h·E router + 3·h·f_shared (2 in place of 3 for plain experts), + h for a shared gate.
    """
    width = 2 if moe.gated else 1
    out: list[Weight] = [
        *linear("router", moe.num_experts, hidden_size, bias=router_bias),
        Weight("experts.gate_up_proj", (moe.num_experts, width * moe.expert_ffn_hidden_size, hidden_size), Role.EXPERT),
        Weight("experts.down_proj", (moe.num_experts, hidden_size, moe.expert_ffn_hidden_size), Role.EXPERT),
    ]
    if moe.shared_ffn_hidden_size:
        mlp = gated_mlp if moe.gated else plain_mlp
        out += mlp(hidden_size, moe.shared_ffn_hidden_size, prefix="shared_expert.")
    if shared_gate:
        out += linear("shared_expert_gate", 1, hidden_size)
    return tuple(out)


def embedding(name: str, rows: int, hidden_size: int) -> Weight:
    """A lookup table."""
    return Weight(name, (rows, hidden_size), Role.EMBEDDING)


def head(vocab_size: int, hidden_size: int, *, bias: bool = False) -> tuple[Weight, ...]:
    """An untied output head."""
    matrix = Weight("lm_head", (vocab_size, hidden_size), Role.HEAD)
    return (matrix, Weight("lm_head.bias", (vocab_size,), Role.BIAS)) if bias else (matrix,)
