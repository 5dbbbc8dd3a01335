"""DBRX: experts stored as three matrices of experts × width, norms without shift, sizes in nested sections.

Source: the modelling file of transformers 5.24, compared tensor by tensor (tests/ingest/neighbours.json).
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.model.architecture import Architecture, Block, Moe, Role, Stack, Weight
from app.domain.model.weights import fused_attention, linear, norm, norms
from app.ingest.hf_config.fields import MAX_WIDTH, Fields
from app.ingest.hf_config.outline import Dims, Outline, decoder
from app.ingest.hf_config.registry import family


@family("dbrx", classes=("DbrxForCausalLM",))
def dbrx(f: Fields) -> Architecture:
    """DBRX. Its expert matrices have no leading expert dimension: the rows of all experts lie one below another."""
    plain = Dims.read(f, grouped=False)
    attn, ffn = f.needed_section("attn_config"), f.needed_section("ffn_config")
    kv = attn.required("kv_n_heads", high=MAX_WIDTH)
    if plain.num_heads % kv:
        raise attn.invalid("kv_n_heads", f"n_heads {plain.num_heads} is not a multiple of {kv}")
    attention = replace(plain, num_kv_heads=kv).attention()
    hidden = plain.hidden_size
    moe = Moe(
        num_experts=ffn.required("moe_num_experts", high=MAX_WIDTH),
        experts_per_token=ffn.required("moe_top_k", high=MAX_WIDTH),
        expert_ffn_hidden_size=ffn.required("ffn_hidden_size"),
    )
    block = Block(
        hidden_size=hidden,
        weights=(
            *fused_attention(hidden, attention, name="Wqkv", out_name="out_proj"),
            *linear("router", moe.num_experts, hidden),
            Weight("experts.mlp", (moe.num_experts * moe.expert_ffn_hidden_size, hidden), Role.EXPERT, 3),
            *norms(("norm_1", "norm_2"), hidden),
        ),
        attention=attention,
        moe=moe,
        norm="layer",
        class_name="DbrxBlock",
    )
    outline = Outline(prefix="Dbrx", hidden_size=hidden, vocab_size=plain.vocab_size, embed_name="wte", final=norm("norm_f", hidden))
    return decoder(f, outline, (Stack(block=block, count=plain.num_layers),))
