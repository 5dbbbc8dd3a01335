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


def experts(
    hidden_size: int, moe: Moe, *, router_bias: bool = False, shared_gate: bool = False, shared_bias: bool = False
) -> tuple[Weight, ...]:
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
        out += mlp(hidden_size, moe.shared_ffn_hidden_size, bias=shared_bias, prefix="shared_expert.")
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


def norms(names: tuple[str, ...], size: int, *, bias: bool = False) -> tuple[Weight, ...]:
    """Several normalisations over the same ``size`` elements."""
    return tuple(weight for name in names for weight in norm(name, size, bias=bias))


def conv(name: str, shape: tuple[int, ...], *, bias: bool = False) -> tuple[Weight, ...]:
    """A convolution of ``shape`` (out channels, in channels per group, kernel dims), with its bias where it has one."""
    kernel = Weight(name, shape, Role.CONV)
    return (kernel, Weight(f"{name}.bias", shape[:1], Role.BIAS)) if bias else (kernel,)


def fused_attention(
    hidden_size: int, attention: Attention, *, name: str, out_name: str, qkv_bias: bool = False, out_bias: bool = False
) -> tuple[Weight, ...]:
    """Attention whose q, k and v come from one matrix ``name``; the output projection is ``out_name``.

    Equation: h·d·(a + 2k) + a·d·h; biases d·(a + 2k) and h.
    """
    q, k = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    v = attention.num_kv_heads * attention.v_head_dim
    return (
        *linear(name, q + k + v, hidden_size, bias=qkv_bias),
        *linear(out_name, hidden_size, attention.num_heads * attention.v_head_dim, bias=out_bias),
    )


def latent_attention(
    hidden_size: int, attention: Attention, *, q_rank: int | None, rope_dim: int, bias: bool = False
) -> tuple[Weight, ...]:
    """Multi-head latent attention: low-rank keys and values, optionally low-rank queries.

    Equation: q h·a·d, or h·r + r + r·a·d with query rank r; kv h·(c + dr) + c + c·a·(dn + dv); output a·dv·h,
    with d = dn + dr and latent_dim = c + dr.
    """
    heads, rank = attention.num_heads, attention.latent_dim - rope_dim
    q = heads * attention.head_dim
    if q_rank is None:
        query = linear("q_proj", q, hidden_size)
    else:
        query = (
            *linear("q_a_proj", q_rank, hidden_size, bias=bias),
            *norm("q_a_layernorm", q_rank),
            *linear("q_b_proj", q, q_rank),
        )
    return (
        *query,
        *linear("kv_a_proj_with_mqa", attention.latent_dim, hidden_size, bias=bias),
        *norm("kv_a_layernorm", rank),
        *linear("kv_b_proj", heads * (attention.head_dim - rope_dim + attention.v_head_dim), rank),
        *linear("o_proj", hidden_size, heads * attention.v_head_dim, bias=bias),
    )


def two_layer_mlp(hidden_size: int, ffn_hidden_size: int, names: tuple[str, str], *, bias: bool = True) -> tuple[Weight, ...]:
    """A two-matrix feed-forward under the family's own names (``fc1``/``fc2``, ``dense_h_to_4h``/``dense_4h_to_h``).

    Equation: 2·h·f; biases f + h.
    """
    return (
        *linear(names[0], ffn_hidden_size, hidden_size, bias=bias),
        *linear(names[1], hidden_size, ffn_hidden_size, bias=bias),
    )


def fused_gated_mlp(
    hidden_size: int,
    ffn_hidden_size: int,
    names: tuple[str, str] = ("gate_up_proj", "down_proj"),
    *,
    bias: bool = False,
) -> tuple[Weight, ...]:
    """A gated feed-forward whose two input matrices are one tensor.

    Equation: 3·h·f; biases 2·f + h.
    """
    return (
        *linear(names[0], 2 * ffn_hidden_size, hidden_size, bias=bias),
        *linear(names[1], hidden_size, ffn_hidden_size, bias=bias),
    )
