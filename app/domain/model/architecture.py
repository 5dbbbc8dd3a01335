"""What a model is made of, in tensors: the one description that counts, memory and FLOPs are read from.

An ``Architecture`` lists every weight tensor with its shape and role, block by block, plus the few widths that
activations and FLOPs need. It knows no library's key names; ``app/ingest`` builds it from a config.json.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class Role(StrEnum):
    """What a weight does, which decides its FLOPs, its optimizer rule and whether an adapter can sit on it."""

    LINEAR = "linear"
    EXPERT = "expert"
    EMBEDDING = "embedding"
    HEAD = "head"
    NORM = "norm"
    BIAS = "bias"
    CONV = "conv"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight tensor, or several of the same shape.

    Attributes:
        name: name of the tensor inside its block, in the field's words (``q_proj``, ``down_proj``, ``experts.gate_up_proj``).
        shape: dims; for ``Role.EXPERT`` the first is the number of experts.
        role: see ``Role``.
        copies: how many tensors of this name and shape one block holds.
        numel: elements of all copies together; every count sums it, so it is worked out once.
    """

    name: str
    shape: tuple[int, ...]
    role: Role = Role.LINEAR
    copies: int = 1
    numel: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numel", math.prod(self.shape) * self.copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Widths of one attention layer.

    Attributes:
        num_heads: query heads.
        num_kv_heads: key/value heads (equal to num_heads without grouping).
        head_dim: elements of one query or key head.
        v_head_dim: elements of one value head.
        kind: grouped (MHA, GQA, MQA), latent (MLA) or linear (gated delta rule and the like, no score matrix).
        window: tokens a query sees at most; None = all.
        causal: whether the upper triangle is masked.
        latent_dim: for MLA, low-rank width of keys and values together with the shared rotary key.
        fused_rotary: queries, keys and values are slices of one projection, the first two rotated afterwards (GPT-NeoX, Phi-3).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    kind: Literal["grouped", "latent", "linear"] = "grouped"
    window: int | None = None
    causal: bool = True
    latent_dim: int = 0
    fused_rotary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """Width of one feed-forward layer; ``gated`` has two input matrices (SwiGLU, GeGLU)."""

    ffn_hidden_size: int
    gated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """A mixture of experts: ``experts_per_token`` of ``num_experts`` run for a token, plus the shared ones always.

    ``class_name`` is the module of transformers that holds router and experts; empty if unknown.
    """

    num_experts: int
    experts_per_token: int
    expert_ffn_hidden_size: int
    shared_ffn_hidden_size: int = 0
    gated: bool = True
    class_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssm:
    """Widths of a state-space or recurrent mixer."""

    inner_size: int
    state_size: int
    conv_kernel: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One repeated layer. Parts that are absent are None.

    Attributes:
        hidden_size: width of the residual stream.
        weights: every weight tensor of the block.
        attention: self-attention, if any.
        cross_attention: attention over another sequence (decoder of an encoder-decoder, text in a video model).
        mlp: dense feed-forward, if any.
        moe: mixture of experts, if any.
        ssm: state-space mixer, if any.
        norm: ``rms``, ``layer`` or ``none``.
        num_norms: normalisations of the full hidden width in one block.
        parallel_residual: attention and feed-forward read the same input (GPT-NeoX, Falcon, Phi-2).
        dropout: whether dropout layers run in training (GPT-2, BERT, T5): each keeps a mask.
        class_name: name of the module class in transformers or diffusers, used for wrapping; empty if unknown.
    """

    hidden_size: int
    weights: tuple[Weight, ...]
    attention: Attention | None = None
    cross_attention: Attention | None = None
    mlp: Mlp | None = None
    moe: Moe | None = None
    ssm: Ssm | None = None
    norm: Literal["rms", "layer", "none"] = "rms"
    num_norms: int = 2
    parallel_residual: bool = False
    dropout: bool = False
    class_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A run of equal blocks.

    Attributes:
        block: the block.
        count: how many times it runs in one forward.
        distinct: how many of them own weights (ALBERT shares one block 12 times); None = all.
        part: which sequence it works on: ``main`` (the text decoder, the only encoder, the image tokens of a DiT),
            ``encoder`` (of an encoder-decoder) or ``vision`` (a tower beside a language model).
        tokens: tokens per sample where the model fixes it (image patches, audio frames); None = the request's seq_len.
    """

    block: Block
    count: int
    distinct: int | None = None
    part: Literal["main", "encoder", "vision"] = "main"
    tokens: int | None = None

    @property
    def owned(self) -> int:
        """Blocks that own weights."""
        return self.count if self.distinct is None else self.distinct


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Habits of an implementation that decide how many copies of a tensor live, beside its widths.

    Attributes:
        spelled_activation: the activation function is written out in element-wise operations (``gelu_new``), each keeping its input.
        wide_norms: norms multiply in fp32 and cast afterwards (Gemma), keeping the fp32 product.
        softcapped_scores, softcapped_logits: a tanh bounds them (Gemma 2), keeping one more copy.
        upcasts_logits: the loss runs on a fp32 copy of the logits (causal models do, masked ones do not).
    """

    spelled_activation: bool = False
    wide_norms: bool = False
    softcapped_scores: bool = False
    softcapped_logits: bool = False
    upcasts_logits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A whole model.

    Attributes:
        name: what to call it.
        family: adapter or rule that counted it (``llama``, ``deepseek_v3``, ``shape``).
        kind: what sort of model it is.
        hidden_size: width of the main residual stream.
        vocab_size: rows of the output head; 0 for models without one.
        tied_embeddings: whether the head is the embedding table.
        stacks: the repeated layers.
        weights: tensors outside the blocks (embeddings, positions, final norm, head, projector, poolers).
        max_seq_len: longest sequence the position scheme allows, if the config says.
        model_class: class name in transformers or diffusers, for emitted scripts; empty if unknown.
        numerics: habits of the implementation.
        params_override: total the user stated; the difference to the count is spread over the main blocks.
        inferred: what was assumed rather than given, in words; empty when everything was given.
    """

    name: str
    family: str
    kind: Literal["decoder", "encoder", "encoder_decoder", "multimodal", "ssm", "diffusion"]
    hidden_size: int
    vocab_size: int
    tied_embeddings: bool
    stacks: tuple[Stack, ...]
    weights: tuple[Weight, ...] = ()
    max_seq_len: int | None = None
    model_class: str = ""
    numerics: Numerics = field(default_factory=Numerics)
    params_override: int | None = None
    inferred: tuple[str, ...] = field(default=())

    @property
    def main_block(self) -> Block:
        """The most frequent block of the main sequence: what wrapping and per-layer figures refer to."""
        return max((s for s in self.stacks if s.part == "main"), key=lambda s: s.count).block

    @property
    def num_layers(self) -> int:
        """Blocks of the main sequence that one forward runs."""
        return sum(s.count for s in self.stacks if s.part == "main")
