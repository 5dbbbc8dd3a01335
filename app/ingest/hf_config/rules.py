"""What sets one llama-like family apart from the next, as data, and the one builder that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from app.domain.model.architecture import Architecture, Attention, Block, Mlp, Moe, Role, Weight
from app.domain.model.weights import (
    experts,
    fused_attention,
    fused_gated_mlp,
    gated_mlp,
    grouped_attention,
    norm,
    norms,
    two_layer_mlp,
)
from app.ingest.hf_config.fields import MAX_WIDTH, Fields
from app.ingest.hf_config.outline import Dims, Outline, decoder, group

Switch = bool | str
Windows = Callable[[Fields, int], tuple[int | None, ...]]
Sparse = Callable[[Fields, int], tuple[bool, ...]]


def no_windows(_: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Every layer sees the whole sequence."""
    return (None,) * num_layers


def every_layer(_: Fields, num_layers: int) -> tuple[bool, ...]:
    """A mixture of experts in every layer."""
    return (True,) * num_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeRules:
    """Where a family's config keeps its expert sizes.

    Attributes:
        count: keys of the number of routed experts.
        top_k: keys of the number of experts a token visits.
        width: keys of the width of one expert.
        shared: width of the shared experts together; 0 for none.
        sparse: which layers are mixtures.
        shared_gate: whether the shared expert has a gate of its own.
        shared_bias: whether the shared expert's matrices have biases.
        router_bias: whether the router has a bias.
        transposed: experts stored as [E, in, out].
        expert_bias: whether each expert has biases.
        also: tensors beside the experts, e.g. a selection bias that is a parameter.
    """

    count: tuple[str, ...] = ("num_experts",)
    top_k: tuple[str, ...] = ("num_experts_per_tok",)
    width: tuple[str, ...] = ("moe_intermediate_size",)
    shared: Callable[[Fields], int] = lambda _: 0
    sparse: Sparse = every_layer
    shared_gate: bool = False
    shared_bias: Switch = False
    router_bias: bool = False
    transposed: bool = False
    expert_bias: bool = False
    also: Callable[[Moe], tuple[Weight, ...]] = lambda _: ()

    def read(self, f: Fields) -> Moe:
        """The expert sizes of one config."""
        count = f.required(*self.count, high=MAX_WIDTH)
        top_k = _uniform(f, self.top_k)
        if top_k > count and not f.missing:
            raise f.invalid(self.top_k[0], f"{top_k} experts per token out of {count}")
        return Moe(
            num_experts=count,
            experts_per_token=top_k,
            expert_ffn_hidden_size=_uniform(f, self.width),
            shared_ffn_hidden_size=self.shared(f),
        )

    def weights(self, f: Fields, hidden_size: int, moe: Moe) -> tuple[Weight, ...]:
        """Router, experts and shared experts."""
        found = experts(
            hidden_size, moe, router_bias=self.router_bias, shared_gate=self.shared_gate,
            shared_bias=switch(f, self.shared_bias),
        )  # fmt: skip
        if self.transposed:
            found = tuple(replace(w, shape=(w.shape[0], w.shape[2], w.shape[1])) if w.role is Role.EXPERT else w for w in found)
        if self.expert_bias:
            rows = (2 * moe.expert_ffn_hidden_size, hidden_size)
            names = ("experts.gate_up_proj_bias", "experts.down_proj_bias")
            found += tuple(Weight(name, (moe.num_experts, size), Role.EXPERT) for name, size in zip(names, rows, strict=True))
        return found + self.also(moe)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderRules:
    """How a family departs from the plain pre-norm gated decoder. A string names the config key that decides.

    Attributes:
        prefix: class prefix in the library.
        layer: class of one layer; ``{prefix}DecoderLayer`` where empty.
        qkv_bias, out_bias, mlp_bias, head_bias: which matrices have biases.
        qk_norm: normalisation of queries and keys: one vector of head_dim, the full width, a heads × head_dim grid,
            one module for each head, or none; ``qk_norm_if`` names a deciding key, ``qk_norm_bias`` adds a shift.
        gated: whether the feed-forward has two input matrices.
        norm: kind of normalisation; ``norm_bias`` whether it has a shift.
        norm_names: normalisations of one block.
        fused_qkv: name of the one q/k/v matrix of families that fuse them.
        fused_mlp: whether gate and up are one matrix.
        mlp_names: names of a two-matrix feed-forward.
        out_name: name of the output projection.
        windows: attention window of each layer.
        ffn: width of the dense feed-forward.
        parallel: attention and feed-forward read the same input.
        dropout: keys of dropout rates.
        moe: expert rules, if the family mixes.
        per_head: names of vectors with one value for each head (attention sinks).
        also: further tensors of one block.
    """

    prefix: str
    layer: str = ""
    qkv_bias: Switch = False
    out_bias: Switch = False
    mlp_bias: Switch = False
    head_bias: Switch = False
    qk_norm: Literal["", "head", "width", "grid", "each"] = ""
    qk_norm_if: str = ""
    qk_norm_bias: bool = False
    gated: bool = True
    norm: Literal["rms", "layer", "none"] = "rms"
    norm_bias: bool = False
    norm_names: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    fused_qkv: str = ""
    fused_mlp: bool = False
    mlp_names: tuple[str, str] = ("up_proj", "down_proj")
    out_name: str = "o_proj"
    windows: Windows = no_windows
    ffn: Callable[[Fields], int] = lambda f: f.required("intermediate_size")
    parallel: bool = False
    dropout: tuple[str, ...] = ("attention_dropout",)
    moe: MoeRules | None = None
    per_head: tuple[str, ...] = ()
    also: Callable[[Fields, Dims], tuple[Weight, ...]] = lambda _f, _dims: ()


def build(f: Fields, rules: DecoderRules) -> Architecture:
    """The architecture of one config of a rule-described family."""
    dims = Dims.read(f)
    windows = rules.windows(f, dims.num_layers)
    sparse = rules.moe.sparse(f, dims.num_layers) if rules.moe else (False,) * dims.num_layers

    def block(window: int | None, is_sparse: bool) -> Block:
        return layer(f, rules, dims, window=window, sparse=is_sparse)

    final = () if rules.norm == "none" else norm("norm", dims.hidden_size, bias=rules.norm_bias)
    outline = Outline(
        prefix=rules.prefix,
        hidden_size=dims.hidden_size,
        vocab_size=dims.vocab_size,
        final=final,
        head_bias=switch(f, rules.head_bias),
    )
    return decoder(f, outline, group(zip(windows, sparse, strict=True), block))


def layer(f: Fields, rules: DecoderRules, dims: Dims, *, window: int | None, sparse: bool) -> Block:
    """One block of a rule-described family."""
    attention = replace(dims.attention(window), fused_rotary=bool(rules.fused_qkv))
    moe = rules.moe.read(f) if rules.moe and sparse else None
    ffn = None if moe else rules.ffn(f)
    feed_forward = rules.moe.weights(f, dims.hidden_size, moe) if rules.moe and moe else _mlp(f, rules, dims, ffn or 1)
    names = () if rules.norm == "none" else rules.norm_names
    return Block(
        hidden_size=dims.hidden_size,
        weights=(
            *attention_weights(f, rules, dims, attention),
            *feed_forward,
            *norms(names, dims.hidden_size, bias=rules.norm_bias),
            *rules.also(f, dims),
        ),
        attention=attention,
        mlp=Mlp(ffn_hidden_size=ffn, gated=rules.gated) if ffn else None,
        moe=moe,
        norm=rules.norm,
        num_norms=len(rules.norm_names),
        parallel_residual=rules.parallel,
        dropout=any(f.number(key) > 0 for key in rules.dropout),
        class_name=rules.layer or f"{rules.prefix}DecoderLayer",
    )


def attention_weights(f: Fields, rules: DecoderRules, dims: Dims, attention: Attention) -> tuple[Weight, ...]:
    """Projections, query/key norms and per-head vectors of one attention layer."""
    qkv_bias, out_bias = switch(f, rules.qkv_bias), switch(f, rules.out_bias)
    if rules.fused_qkv:
        found = fused_attention(
            dims.hidden_size, attention, name=rules.fused_qkv, out_name=rules.out_name,
            qkv_bias=qkv_bias, out_bias=out_bias,
        )  # fmt: skip
    else:
        found = grouped_attention(dims.hidden_size, attention, qkv_bias=qkv_bias, out_bias=out_bias)
    if rules.qk_norm and (not rules.qk_norm_if or f.flag(rules.qk_norm_if)):
        found += _qk_norm("q_norm", rules, dims.num_heads, dims.head_dim)
        found += _qk_norm("k_norm", rules, dims.num_kv_heads, dims.head_dim)
    return found + tuple(Weight(name, (dims.num_heads,), Role.OTHER) for name in rules.per_head)


def _qk_norm(name: str, rules: DecoderRules, heads: int, size: int) -> tuple[Weight, ...]:
    if rules.qk_norm == "each":
        return (Weight(name, (size,), Role.NORM, heads),)
    if rules.qk_norm == "grid":
        return (Weight(name, (heads, size), Role.NORM),)
    return norm(name, size if rules.qk_norm == "head" else heads * size, bias=rules.qk_norm_bias)


def _uniform(f: Fields, names: tuple[str, ...]) -> int:
    """A size given once, or as a list with one entry for each layer that are all the same."""
    listed = next((name for name in names if isinstance(f.raw(name), list)), None)
    if listed is None:
        return f.required(*names)
    found = set(f.integers(listed, low=1) or ())
    if len(found) != 1:
        raise f.unsupported(listed, "layers of different sizes are not read")
    return found.pop()


def switch(f: Fields, rule: Switch) -> bool:
    """A constant, or the flag of the config that the rule names."""
    return f.flag(rule) if isinstance(rule, str) else rule


def _mlp(f: Fields, rules: DecoderRules, dims: Dims, ffn: int) -> tuple[Weight, ...]:
    bias = switch(f, rules.mlp_bias)
    if rules.gated:
        return (fused_gated_mlp if rules.fused_mlp else gated_mlp)(dims.hidden_size, ffn, bias=bias)
    return two_layer_mlp(dims.hidden_size, ffn, rules.mlp_names, bias=bias)
