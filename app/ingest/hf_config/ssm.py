"""State-space models: Mamba, Falcon-Mamba, Mamba-2 and Nemotron-H.

Source: the modelling files of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from app.domain.model.architecture import Architecture, Block, Mlp, Moe, Role, Ssm, Stack, Weight
from app.domain.model.weights import grouped_attention, linear, norm, two_layer_mlp
from app.ingest.hf_config.fields import MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, Fields
from app.ingest.hf_config.mamba import Mamba1, Mamba2
from app.ingest.hf_config.outline import Dims, Outline, decoder, group
from app.ingest.hf_config.registry import family

_KINDS = {
    "M": "mamba",
    "*": "attention",
    "-": "mlp",
    "E": "moe",
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}


def _ssm_model(f: Fields, prefix: str, block: Block) -> Architecture:
    outline = Outline(
        prefix=prefix,
        hidden_size=block.hidden_size,
        vocab_size=f.required("vocab_size", high=MAX_VOCAB),
        embed_name="embeddings",
        final=norm("norm_f", block.hidden_size),
        kind="ssm",
    )
    layers = f.required("num_hidden_layers", "n_layer", high=MAX_LAYERS)
    return decoder(f, outline, (Stack(block=block, count=layers),))


@family("mamba", "falcon_mamba", classes=("MambaForCausalLM",))
def mamba(f: Fields) -> Architecture:
    """Mamba and Falcon-Mamba: selective scan with a low-rank time step; intermediate_size wins over expand."""
    hidden = f.required("hidden_size", "d_model", high=MAX_WIDTH)
    inner = f.optional("intermediate_size", "d_inner") or f.integer("expand", default=2, high=1000) * hidden
    mixer = Mamba1(
        hidden_size=hidden,
        inner_size=inner,
        state_size=f.integer("state_size", default=16),
        rank=time_step_rank(f, "time_step_rank", hidden),
        conv_kernel=f.integer("conv_kernel", default=4),
        bias=f.flag("use_bias"),
        conv_bias=f.flag("use_conv_bias", default=True),
    )
    prefix = "Mamba" if f.model_type == "mamba" else "FalconMamba"
    return _ssm_model(f, prefix, _single(mixer.weights(), mixer.ssm(), hidden, f"{prefix}Block"))


@family("mamba2", classes=("Mamba2ForCausalLM",))
def mamba2(f: Fields) -> Architecture:
    """Mamba-2: heads with a scalar decay; num_heads and head_dim are those of the state space."""
    hidden = f.required("hidden_size", high=MAX_WIDTH)
    mixer = Mamba2(
        hidden_size=hidden,
        inner_size=f.integer("expand", default=2, high=1000) * hidden,
        num_heads=f.required("num_heads", high=MAX_WIDTH),
        groups=f.integer("n_groups", default=8),
        state_size=f.integer("state_size", default=128),
        conv_kernel=f.integer("conv_kernel", default=4),
        bias=f.flag("use_bias"),
        conv_bias=f.flag("use_conv_bias", default=True),
    )
    return _ssm_model(f, "Mamba2", _single(mixer.weights(), mixer.ssm(), hidden, "Mamba2Block"))


def time_step_rank(f: Fields, name: str, hidden_size: int) -> int:
    """The rank given, or hidden_size / 16 rounded up where it is null or "auto"."""
    if f.raw(name) in (None, "auto"):
        return -(-hidden_size // 16)
    return f.integer(name, high=MAX_WIDTH)


def _single(weights: tuple[Weight, ...], ssm: Ssm, hidden_size: int, class_name: str) -> Block:
    return Block(
        hidden_size=hidden_size,
        weights=(*norm("norm", hidden_size), *weights),
        ssm=ssm,
        num_norms=1,
        class_name=class_name,
    )


@family("nemotron_h", classes=("NemotronHForCausalLM",))
def nemotron_h(f: Fields) -> Architecture:
    """Nemotron-H: state space, attention, feed-forward and experts are layers of their own, by a pattern."""
    kinds = _nemotron_kinds(f)
    dims = Dims.read(f.retyped("nemotron_h"))
    if len(kinds) != dims.num_layers and not f.missing:
        raise f.invalid("num_hidden_layers", f"{dims.num_layers} layers, but the pattern has {len(kinds)}")

    def block(kind: str) -> Block:
        return _nemotron_block(f, dims, kind)

    outline = Outline(
        prefix="NemotronH",
        hidden_size=dims.hidden_size,
        vocab_size=dims.vocab_size,
        embed_name="embeddings",
        final=norm("norm_f", dims.hidden_size),
    )
    return decoder(f, outline, group(kinds, block))


def _nemotron_kinds(f: Fields) -> tuple[str, ...]:
    listed = f.texts("layers_block_type", "layer_types")
    pattern = listed if listed is not None else tuple(f.text("hybrid_override_pattern"))
    if not pattern:
        raise f.unsupported("hybrid_override_pattern", "missing: it says which layers are M (mamba), * , - or E")
    unknown = sorted({kind[:20] for kind in pattern if kind not in _KINDS})
    if unknown:
        raise f.invalid("hybrid_override_pattern", f"unknown kinds of layer {', '.join(unknown)}; M, *, - and E are known")
    if len(pattern) > MAX_LAYERS:
        raise f.invalid("hybrid_override_pattern", f"{len(pattern):,} layers are more than {MAX_LAYERS:,}")
    return tuple(_KINDS[kind] for kind in pattern)


def _nemotron_block(f: Fields, dims: Dims, kind: str) -> Block:
    hidden = dims.hidden_size
    first = norm("norm", hidden)
    if kind == "mamba":
        heads = f.integer("mamba_num_heads", high=MAX_WIDTH)
        mixer = Mamba2(
            hidden_size=hidden,
            inner_size=heads * f.integer("mamba_head_dim", high=MAX_WIDTH),
            num_heads=heads,
            groups=f.integer("mamba_n_groups", "n_groups", default=8),
            state_size=f.integer("ssm_state_size", default=128),
            conv_kernel=f.integer("mamba_d_conv", "conv_kernel", default=4),
            bias=f.flag("use_bias"),
            conv_bias=f.flag("mamba_conv_bias", "use_conv_bias", default=True),
        )
        return _single(mixer.weights(), mixer.ssm(), hidden, "NemotronHBlock")
    if kind == "attention":
        attention = dims.attention(f.optional("sliding_window"))
        weights = grouped_attention(hidden, attention)
        return Block(hidden_size=hidden, weights=first + weights, attention=attention, num_norms=1, class_name="NemotronHBlock")
    if kind == "moe":
        moe, weights = _nemotron_experts(f, hidden)
        return Block(hidden_size=hidden, weights=first + weights, moe=moe, num_norms=1, class_name="NemotronHBlock")
    ffn = f.required("intermediate_size")
    weights = two_layer_mlp(hidden, ffn, ("up_proj", "down_proj"), bias=f.flag("mlp_bias"))
    mlp = Mlp(ffn_hidden_size=ffn, gated=False)
    return Block(hidden_size=hidden, weights=first + weights, mlp=mlp, num_norms=1, class_name="NemotronHBlock")


def _nemotron_experts(f: Fields, hidden: int) -> tuple[Moe, tuple[Weight, ...]]:
    moe = Moe(
        num_experts=f.required("n_routed_experts", high=MAX_WIDTH),
        experts_per_token=f.required("num_experts_per_tok", high=MAX_WIDTH),
        expert_ffn_hidden_size=f.required("moe_intermediate_size"),
        shared_ffn_hidden_size=f.required("moe_shared_expert_intermediate_size"),
        gated=False,
    )
    latent = f.optional("moe_latent_size", high=MAX_WIDTH)
    width, bias = latent or hidden, f.flag("mlp_bias")
    shared = two_layer_mlp(hidden, moe.shared_ffn_hidden_size, ("shared_experts.up_proj", "shared_experts.down_proj"), bias=bias)
    weights = (
        *linear("router", moe.num_experts, hidden),
        Weight("experts.up_proj", (moe.num_experts, moe.expert_ffn_hidden_size, width), Role.EXPERT),
        Weight("experts.down_proj", (moe.num_experts, width, moe.expert_ffn_hidden_size), Role.EXPERT),
        *shared,
    )
    if latent:
        weights += linear("fc1_latent_proj", latent, hidden, bias=bias)
        weights += linear("fc2_latent_proj", hidden, latent, bias=bias)
    return moe, weights
