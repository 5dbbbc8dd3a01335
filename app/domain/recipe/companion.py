"""Other models on the same GPUs: the reference, critic, reward or teacher of the model that is trained, or an engine that generates."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.domain.model.architecture import Architecture, Role, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """One model beside the trained one. None takes the trained model's own.

    Attributes:
        role: what it is called, unique in its job.
        model: what it is made of.
        trains: whether it has gradients and optimizer states of its own, under the same recipe and strategy.
        precision: dtype it computes in; a frozen one is stored in it as well.
        replicated: whole on each GPU, however the trained model is sharded.
        on_host: its weights are in host memory between its forwards.
        micro_batch, seq_len: of its forward.
        cache_tokens: tokens of keys and values that an inference engine keeps on each GPU; None where it is no engine.
    """

    role: str
    model: Architecture
    trains: bool = False
    precision: str | None = None
    replicated: bool = False
    on_host: bool = False
    micro_batch: int | None = None
    seq_len: int | None = None
    cache_tokens: int | None = None


def with_value_head(model: Architecture) -> Architecture:
    """The same model with one number a token instead of logits, as critics and reward models have it.

    Equation: P − V·h (where the head is a matrix of its own) + h
    """
    if not model.vocab_size:
        return model
    heads = tuple(w for w in model.weights if w.role is Role.HEAD)
    score = Weight("score", (1, model.hidden_size), Role.LINEAR)
    override = model.params_override
    if override is not None:
        override += score.numel - sum(w.numel for w in heads)
    weights = (*(w for w in model.weights if w.role is not Role.HEAD), score)
    return replace(model, vocab_size=0, tied_embeddings=False, weights=weights, params_override=override)
