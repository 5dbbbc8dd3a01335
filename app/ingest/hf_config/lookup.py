"""Finds keys of a config under every spelling the library knows, and words the errors about them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from app.domain.errors import FieldError, InvalidRequestError, Loc, UnsupportedModelError

MAX_LAYERS = 10_000
MAX_WIDTH = 1_000_000
MAX_VOCAB = 100_000_000
MAX_COUNT = 100_000_000
MAX_DEPTH = 12  # path length; no config nests sections more than two or three deep

ABSENT: Final = object()


@cache
def class_table() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Defaults and attribute names of the library's config classes, by model_type.

    Source: written by ``bench/dump_class_defaults.py`` from the installed transformers.
    """
    table: dict[str, dict[str, dict[str, Any]]] = json.loads(Path(__file__).with_name("class_defaults.json").read_text(encoding="utf-8"))
    return table


class Lookup:
    """One section of a config: what it gives, what the class says, and what was looked for in vain.

    Attributes:
        loc: path of the section in the request.
        class_type: model_type whose class defaults and attribute names apply.
        model_type: family whose adapter reads it; the same unless another family's adapter is borrowed.
        nested: whether class defaults stand in for sizes that are not given.
        missing: every key looked for in vain so far, shared by all sections of one config.
    """

    def __init__(
        self, config: Mapping[str, Any], *, loc: Loc, model_type: str = "", nested: bool = False,
        missing: list[FieldError] | None = None, family: str = "",
    ) -> None:  # fmt: skip
        self._config = config
        self.loc = loc
        self.class_type = model_type
        self.model_type = family or model_type
        self.nested = nested
        self.missing: list[FieldError] = [] if missing is None else missing
        entry = class_table().get(model_type, {})
        self._aliases: Mapping[str, str] = entry.get("aliases", {})
        self._defaults: Mapping[str, Any] = entry.get("defaults", {})

    def has(self, name: str) -> bool:
        """Whether the config gives a value (not null) for the key."""
        return self._given((name,))[1] not in (ABSENT, None)

    def nulled(self, name: str) -> bool:
        """Whether the config names the key and gives null, which switches a class default off."""
        return self._given((name,))[1] is None

    def raw(self, name: str) -> Any:
        """The value as found, or None; for the few keys with a shape of their own."""
        value = self._given((name,))[1]
        return None if value is ABSENT else value

    def class_list(self, name: str) -> tuple[int, ...] | None:
        """The class default of a key that may be a number or a list, where it is a list."""
        value = self._class_default((name,))
        return tuple(value) if isinstance(value, list) else None

    def invalid(self, name: str, msg: str, hint: str = "") -> InvalidRequestError:
        """The error for one key of this section."""
        return InvalidRequestError.at(*self.loc, name, msg=f"{name}: {msg}", hint=hint)

    def unsupported(self, name: str, msg: str) -> UnsupportedModelError:
        """The error for a value that is legal but whose tensors this reader does not know."""
        hint = "give model.shape or model.params instead"
        return UnsupportedModelError(f"{name}: {msg}; {hint}", (FieldError((*self.loc, name), msg, hint),))

    def _given(self, names: tuple[str, ...]) -> tuple[str, Any]:
        for name in self._spellings(names):
            if name in self._config:
                return name, self._config[name]
        return names[0], ABSENT

    def _spellings(self, names: tuple[str, ...]) -> tuple[str, ...]:
        mapped = tuple(self._aliases[name] for name in names if name in self._aliases)
        return names if not mapped else tuple(dict.fromkeys((*names, *mapped)))

    def _class_default(self, names: tuple[str, ...]) -> Any:
        for name in self._spellings(names):
            if name in self._defaults:
                return self._defaults[name]
        return ABSENT

    def _miss(self, names: tuple[str, ...]) -> int:
        spellings = self._spellings(names)
        also = f" (also read as {', '.join(spellings[1:])})" if len(spellings) > 1 else ""
        self.missing.append(FieldError((*self.loc, spellings[0]), f"{spellings[0]} is missing{also}"))
        return 1

    def _integer(self, name: str, value: Any, low: int, high: int) -> int:
        if isinstance(value, float) and math.isfinite(value) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(name, f"{show(value)} is not an integer")
        if not low <= value <= high:
            raise self.invalid(name, f"{show(value)} is outside {low} to {high:,}")
        return value

    def _items(self, name: str, value: Any, length: int | None) -> tuple[Any, ...] | None:
        if value in (ABSENT, None):
            return None
        if not isinstance(value, list | tuple):
            raise self.invalid(name, f"{show(value)} is not a list")
        if len(value) > MAX_LAYERS:
            raise self.invalid(name, f"{len(value):,} entries are more than {MAX_LAYERS:,}")
        if length is not None and len(value) != length:
            raise self.invalid(name, f"{len(value)} entries for {length} layers")
        return tuple(value)


def show(value: Any) -> str:
    """A short, safe rendering of a value for a message; never walks deep into it."""
    if isinstance(value, Mapping | list | tuple | set):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and abs(value) > 10**18:
        return "an integer beyond 10^18"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
