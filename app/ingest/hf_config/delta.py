"""Hybrids of full attention and the gated delta rule: Qwen3-Next and Qwen3.5.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.domain.model.architecture import Architecture, Attention, Block, Mlp, Role, Weight
from app.domain.model.weights import conv, gated_mlp, linear, norm, norms
from app.ingest.hf_config.fields import MAX_WIDTH, Fields
from app.ingest.hf_config.mixture import qwen_sparse
from app.ingest.hf_config.outline import Dims, Outline, decoder, group
from app.ingest.hf_config.registry import family
from app.ingest.hf_config.rules import MoeRules

_SHARED = MoeRules(shared=lambda f: f.required("shared_expert_intermediate_size", low=0), sparse=qwen_sparse, shared_gate=True)
_ALL_SHARED = MoeRules(shared=lambda f: f.required("shared_expert_intermediate_size", low=0), shared_gate=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delta:
    """Widths of the gated delta rule: K and U are all key and all value channels."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    fused: bool

    def attention(self) -> Attention:
        return Attention(
            num_heads=self.value_heads,
            num_kv_heads=self.key_heads,
            head_dim=self.key_dim,
            v_head_dim=self.value_dim,
            kind="linear",
        )

    def weights(self, hidden: int) -> tuple[Weight, ...]:
        """Equation: h·(2K + 2U) + 2·h·nv + w·(2K + U) + 2·nv + dv + U·h."""
        keys, values, heads = self.key_heads * self.key_dim, self.value_heads * self.value_dim, self.value_heads
        if self.fused:
            inputs = linear("in_proj_qkvz", 2 * keys + 2 * values, hidden) + linear("in_proj_ba", 2 * heads, hidden)
        else:
            inputs = (
                *linear("in_proj_qkv", 2 * keys + values, hidden),
                *linear("in_proj_z", values, hidden),
                *linear("in_proj_b", heads, hidden),
                *linear("in_proj_a", heads, hidden),
            )
        return (
            Weight("dt_bias", (heads,), Role.OTHER),
            Weight("A_log", (heads,), Role.OTHER),
            *conv("conv1d", (2 * keys + values, 1, self.kernel)),
            *inputs,
            *norm("gated_norm", self.value_dim),
            *linear("out_proj", hidden, values),
        )


def _gated_attention(f: Fields, dims: Dims) -> tuple[Weight, ...]:
    """Grouped attention whose query projection is doubled by an output gate, with per-head norms."""
    q, kv, hidden = dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim, dims.hidden_size
    bias = f.flag("attention_bias")
    return (
        *linear("q_proj", 2 * q, hidden, bias=bias),
        *linear("k_proj", kv, hidden, bias=bias),
        *linear("v_proj", kv, hidden, bias=bias),
        *linear("o_proj", hidden, q, bias=bias),
        *norms(("q_norm", "k_norm"), dims.head_dim),
    )


def _kinds(f: Fields, num_layers: int) -> tuple[str, ...]:
    types = f.texts("layer_types", length=num_layers)
    if types is not None:
        return types
    step = f.integer("full_attention_interval", default=4)
    return tuple("linear_attention" if (i + 1) % step else "full_attention" for i in range(num_layers))


def _build(f: Fields, prefix: str, *, fused: bool, rules: MoeRules | None) -> Architecture:
    dims = Dims.read(f)
    hidden = dims.hidden_size
    delta = _Delta(
        key_heads=f.integer("linear_num_key_heads", high=MAX_WIDTH),
        value_heads=f.integer("linear_num_value_heads", high=MAX_WIDTH),
        key_dim=f.integer("linear_key_head_dim", high=MAX_WIDTH),
        value_dim=f.integer("linear_value_head_dim", high=MAX_WIDTH),
        kernel=f.integer("linear_conv_kernel_dim", default=4),
        fused=fused,
    )

    def block(kind: str, sparse: bool) -> Block:
        full = kind == "full_attention"
        moe = rules.read(f) if rules and sparse else None
        ffn = None if moe else f.required("intermediate_size")
        feed_forward = rules.weights(f, hidden, moe) if rules and moe else gated_mlp(hidden, ffn or 1)
        return Block(
            hidden_size=hidden,
            weights=(
                *(_gated_attention(f, dims) if full else delta.weights(hidden)),
                *feed_forward,
                *norms(("input_layernorm", "post_attention_layernorm"), hidden),
            ),
            attention=dims.attention() if full else delta.attention(),
            mlp=Mlp(ffn_hidden_size=ffn, gated=True) if ffn else None,
            moe=moe,
            class_name=f"{prefix}DecoderLayer",
        )

    layers = dims.num_layers
    sparse = rules.sparse(f, layers) if rules else (False,) * layers
    outline = Outline(prefix=prefix, hidden_size=hidden, vocab_size=dims.vocab_size, final=norm("norm", hidden))
    return decoder(f, outline, group(zip(_kinds(f, layers), sparse, strict=True), block))


def _adapter(prefix: str, *, fused: bool, rules: MoeRules | None) -> Callable[[Fields], Architecture]:
    return lambda f: _build(f, prefix, fused=fused, rules=rules)


family("qwen3_next", classes=("Qwen3NextForCausalLM",))(_adapter("Qwen3Next", fused=True, rules=_SHARED))
family("qwen3_5_text", classes=("Qwen3_5ForCausalLM",))(_adapter("Qwen3_5", fused=False, rules=None))
family("qwen3_5_moe_text", classes=("Qwen3_5MoeForCausalLM",))(_adapter("Qwen3_5Moe", fused=False, rules=_ALL_SHARED))
