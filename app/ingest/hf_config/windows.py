"""Which layers look at a sliding window, by each family's own rule."""

from __future__ import annotations

from collections.abc import Callable

from app.ingest.hf_config.fields import Fields

Windows = Callable[[Fields, int], tuple[int | None, ...]]

_LOCAL = ("sliding_attention", "chunked_attention", "local_attention")


def sliding(f: Fields, num_layers: int) -> tuple[int | None, ...]:
    """The same window in every layer (Mistral, Phi-3, StarCoder2); null means none."""
    return (f.optional("sliding_window"),) * num_layers


def typed(f: Fields, num_layers: int) -> tuple[int | None, ...] | None:
    """Windows by the config's own ``layer_types`` list; None where it has none."""
    types = f.texts("layer_types", length=num_layers)
    if types is None:
        return None
    window = f.optional("sliding_window", "attention_chunk_size")
    return tuple(window if kind in _LOCAL else None for kind in types)


def every(period: int, key: str = "", *, first_full: bool = False) -> Windows:
    """All layers slide but one in ``period`` (or the config's ``key``): the last of each run, or the first."""

    def rule(f: Fields, num_layers: int) -> tuple[int | None, ...]:
        found = typed(f, num_layers)
        if found is not None:
            return found
        step = f.integer(key, default=period) if key else period
        window = f.optional("sliding_window")
        offset = 0 if first_full else 1
        return tuple(None if (i + offset) % step == 0 else window for i in range(num_layers))

    return rule


def late(f: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Qwen: only with use_sliding_window, from layer max_window_layers on."""
    if not f.flag("use_sliding_window"):
        return (None,) * num_layers
    return from_first(f, num_layers)


def from_first(f: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Dots.1: as Qwen, switched by sliding_window itself."""
    found = typed(f, num_layers)
    if found is not None:
        return found
    first = f.integer("max_window_layers", default=0, low=0)
    window = f.optional("sliding_window")
    return tuple(window if i >= first else None for i in range(num_layers))


def switched(f: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Every layer, where use_sliding_window is on (Qwen3-MoE)."""
    return sliding(f, num_layers) if f.flag("use_sliding_window") else (None,) * num_layers


def by_types_or_sliding(f: Fields, num_layers: int) -> tuple[int | None, ...]:
    """The config's layer_types, else one window everywhere (Ministral)."""
    found = typed(f, num_layers)
    return sliding(f, num_layers) if found is None else found


def without_rope(f: Fields, num_layers: int) -> tuple[int | None, ...]:
    """SmolLM3: with use_sliding_window, the layers without rotary positions slide."""
    found = typed(f, num_layers)
    if found is not None:
        return found
    if not f.flag("use_sliding_window"):
        return (None,) * num_layers
    rotary = f.integers("no_rope_layers", length=num_layers)
    step = f.integer("no_rope_layer_interval", default=4)
    window = f.optional("sliding_window")
    keeps = rotary or tuple(int((i + 1) % step != 0) for i in range(num_layers))
    return tuple(None if keep else window for keep in keeps)
