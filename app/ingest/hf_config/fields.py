"""A typed, bounded reader over a config.json: the only place that looks at the raw mapping.

Sizes that a family requires are never guessed at the top level. Inside nested sections (``text_config``,
``vision_config``) the library stores only what differs from the class, so there the class default is the value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.ingest.hf_config.lookup import (
    ABSENT,
    MAX_COUNT,
    MAX_DEPTH,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    Lookup,
    show,
)

__all__ = ["MAX_COUNT", "MAX_LAYERS", "MAX_VOCAB", "MAX_WIDTH", "Fields"]


class Fields(Lookup):
    """One section of a config, read by canonical key names and checked for type and range."""

    def retyped(self, model_type: str, *, nested: bool | None = None) -> Fields:
        """The same section read as another family."""
        deep = self.nested if nested is None else nested
        return Fields(self._config, loc=self.loc, model_type=model_type, nested=deep, missing=self.missing)

    def as_family(self, family: str) -> Fields:
        """The same section and class defaults, handed to another family's adapter."""
        return self._copy(self._config, family)

    def replaced(self, **values: Any) -> Fields:
        """The same section with some keys set."""
        return self._copy({**self._config, **values}, self.model_type)

    def renamed(self, **aliases: str) -> Fields:
        """The same section, with canonical names that the config spells otherwise."""
        found = self._copy(self._config, self.model_type)
        found._aliases = {**self._aliases, **aliases}
        return found

    def _copy(self, config: Mapping[str, Any], family: str) -> Fields:
        return Fields(config, loc=self.loc, model_type=self.class_type, nested=self.nested, missing=self.missing, family=family)

    def required(self, *names: str, low: int = 1, high: int = MAX_COUNT) -> int:
        """An integer that must be given at the top level; nested sections fall back to the class default."""
        name, value = self._given(names)
        if value in (ABSENT, None) and self.nested:
            value = self._class_default(names)
        if value in (ABSENT, None):
            return self._miss(names)
        return self._integer(name, value, low, high)

    def integer(self, *names: str, default: int | None = None, low: int = 1, high: int = MAX_COUNT) -> int:
        """An integer with a default: the config's, else the class's, else ``default``; missing without any."""
        value = self.optional(*names, low=low, high=high)
        if value is not None:
            return value
        return self._miss(names) if default is None else default

    def optional(self, *names: str, low: int = 1, high: int = MAX_COUNT) -> int | None:
        """An integer that may be null: the config's value, else the class default."""
        name, value = self._given(names)
        if value is ABSENT:
            value = self._class_default(names)
        return None if value in (ABSENT, None) else self._integer(name, value, low, high)

    def flag(self, *names: str, default: bool = False) -> bool:
        """A boolean: the config's, else the class's, else ``default``."""
        name, value = self._given(names)
        if value in (ABSENT, None):
            value = self._class_default(names)
        if value in (ABSENT, None):
            return default
        if isinstance(value, bool):
            return value
        if value in (0, 1):
            return bool(value)
        raise self.invalid(name, f"{show(value)} is not true or false")

    def number(self, *names: str, default: float = 0.0, high: float = 1e9) -> float:
        """A finite, non-negative number: the config's, else the class's, else ``default``."""
        name, value = self._given(names)
        if value in (ABSENT, None):
            value = self._class_default(names)
        if value in (ABSENT, None):
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.invalid(name, f"{show(value)} is not a number")
        if not (isinstance(value, int) or math.isfinite(value)) or not 0 <= value <= high:
            raise self.invalid(name, f"{show(value)} is outside 0 to {high:g}")
        return float(value)

    def text(self, *names: str, default: str = "") -> str:
        """A string: the config's, else the class's, else ``default``."""
        name, value = self._given(names)
        if value in (ABSENT, None):
            value = self._class_default(names)
        if value in (ABSENT, None):
            return default
        if not isinstance(value, str):
            raise self.invalid(name, f"{show(value)} is not a string")
        return value

    def texts(self, *names: str, length: int | None = None) -> tuple[str, ...] | None:
        """A list of strings, or None where not given; ``length`` is the number of entries it must have."""
        name, value = self._given(names)
        items = self._items(name, value, length)
        if items is None:
            return None
        if not all(isinstance(item, str) for item in items):
            raise self.invalid(name, "every entry has to be a string")
        return items

    def integers(self, *names: str, length: int | None = None, low: int = 0) -> tuple[int, ...] | None:
        """A list of integers, or None where neither the config nor the class gives one."""
        name, value = self._given(names)
        if value in (ABSENT, None):
            value = self._class_default(names)
        items = self._items(name, value, length)
        return None if items is None else tuple(self._integer(name, item, low, MAX_COUNT) for item in items)

    def section(self, *names: str, model_type: str = "") -> Fields | None:
        """A nested mapping as Fields of its own ``model_type`` (or the given one); None where absent."""
        name, value = self._given(names)
        if value in (ABSENT, None):
            return None
        if not isinstance(value, Mapping):
            raise self.invalid(name, f"{show(value)} is not an object")
        if len(self.loc) > MAX_DEPTH:
            raise self.invalid(name, "sections are nested too deep")
        own = value.get("model_type")
        kind = own if isinstance(own, str) and own else model_type
        return Fields(value, loc=(*self.loc, name), model_type=kind, nested=True, missing=self.missing)

    def needed_section(self, name: str, *, model_type: str = "") -> Fields:
        """As ``section``, but noted as missing where absent: a whole tower is never read from class defaults."""
        found = self.section(name, model_type=model_type)
        if found is not None:
            return found
        self._miss((name,))
        return Fields({}, loc=(*self.loc, name), model_type=model_type, nested=True, missing=self.missing)
