"""A typed, bounded reader over a config.json: the only place that looks at the raw mapping.

Sizes that a family requires are never guessed at the top level. Inside nested sections (``text_config``,
``vision_config``) the library stores only what differs from the class, so there the class default is the value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from app.domain.errors import FieldError, InvalidRequestError, Loc, UnsupportedModelError

MAX_LAYERS = 10_000
MAX_WIDTH = 1_000_000
MAX_VOCAB = 100_000_000
MAX_COUNT = 100_000_000
MAX_DEPTH = 12  # path length; no config nests sections more than two or three deep

_ABSENT = object()


@cache
def class_table() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Defaults and attribute names of the library's config classes, by model_type.

    Source: written by ``bench/dump_class_defaults.py`` from the installed transformers.
    """
    table: dict[str, dict[str, dict[str, Any]]] = json.loads(
        Path(__file__).with_name("class_defaults.json").read_text(encoding="utf-8")
    )
    return table


class Fields:
    """One section of a config, read by canonical key names.

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
        return Fields(
            config, loc=self.loc, model_type=self.class_type, nested=self.nested, missing=self.missing, family=family
        )

    def has(self, name: str) -> bool:
        """Whether the config gives a value (not null) for the key."""
        return self._given((name,))[1] not in (_ABSENT, None)

    def required(self, *names: str, low: int = 1, high: int = MAX_COUNT) -> int:
        """An integer that must be given at the top level; nested sections fall back to the class default."""
        name, value = self._given(names)
        if value in (_ABSENT, None) and self.nested:
            value = self._class_default(names)
        if value in (_ABSENT, None):
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
        if value is _ABSENT:
            value = self._class_default(names)
        return None if value in (_ABSENT, None) else self._integer(name, value, low, high)

    def flag(self, *names: str, default: bool = False) -> bool:
        """A boolean: the config's, else the class's, else ``default``."""
        name, value = self._given(names)
        if value in (_ABSENT, None):
            value = self._class_default(names)
        if value in (_ABSENT, None):
            return default
        if isinstance(value, bool):
            return value
        if value in (0, 1):
            return bool(value)
        raise self.invalid(name, f"{_show(value)} is not true or false")

    def number(self, *names: str, default: float = 0.0, high: float = 1e9) -> float:
        """A finite, non-negative number: the config's, else the class's, else ``default``."""
        name, value = self._given(names)
        if value in (_ABSENT, None):
            value = self._class_default(names)
        if value in (_ABSENT, None):
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.invalid(name, f"{_show(value)} is not a number")
        if not (isinstance(value, int) or math.isfinite(value)) or not 0 <= value <= high:
            raise self.invalid(name, f"{_show(value)} is outside 0 to {high:g}")
        return float(value)

    def text(self, *names: str, default: str = "") -> str:
        """A string: the config's, else the class's, else ``default``."""
        name, value = self._given(names)
        if value in (_ABSENT, None):
            value = self._class_default(names)
        if value in (_ABSENT, None):
            return default
        if not isinstance(value, str):
            raise self.invalid(name, f"{_show(value)} is not a string")
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
        if value in (_ABSENT, None):
            value = self._class_default(names)
        items = self._items(name, value, length)
        return None if items is None else tuple(self._integer(name, item, low, MAX_COUNT) for item in items)

    def class_list(self, name: str) -> tuple[int, ...] | None:
        """The class default of a key that may be a number or a list, where it is a list."""
        value = self._class_default((name,))
        return tuple(value) if isinstance(value, list) else None

    def raw(self, name: str) -> Any:
        """The value as found, or None; for the few keys with a shape of their own."""
        value = self._given((name,))[1]
        return None if value is _ABSENT else value

    def nulled(self, name: str) -> bool:
        """Whether the config names the key and gives null, which switches a class default off."""
        return self._given((name,))[1] is None

    def section(self, *names: str, model_type: str = "") -> Fields | None:
        """A nested mapping as Fields of its own ``model_type`` (or the given one); None where absent."""
        name, value = self._given(names)
        if value in (_ABSENT, None):
            return None
        if not isinstance(value, Mapping):
            raise self.invalid(name, f"{_show(value)} is not an object")
        if len(self.loc) > MAX_DEPTH:
            raise self.invalid(name, "sections are nested too deep")
        own = value.get("model_type")
        kind = own if isinstance(own, str) and own else model_type
        return Fields(value, loc=(*self.loc, name), model_type=kind, nested=True, missing=self.missing)

    def section_or_empty(self, *names: str, model_type: str = "") -> Fields:
        """As ``section``; an absent one is read as if it were empty, so that class defaults apply."""
        found = self.section(*names, model_type=model_type)
        if found is not None:
            return found
        return Fields({}, loc=(*self.loc, names[0]), model_type=model_type, nested=True, missing=self.missing)

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
        return names[0], _ABSENT

    def _spellings(self, names: tuple[str, ...]) -> tuple[str, ...]:
        mapped = tuple(self._aliases[name] for name in names if name in self._aliases)
        return names if not mapped else tuple(dict.fromkeys((*names, *mapped)))

    def _class_default(self, names: tuple[str, ...]) -> Any:
        for name in self._spellings(names):
            if name in self._defaults:
                return self._defaults[name]
        return _ABSENT

    def _miss(self, names: tuple[str, ...]) -> int:
        spellings = self._spellings(names)
        also = f" (also read as {', '.join(spellings[1:])})" if len(spellings) > 1 else ""
        self.missing.append(FieldError((*self.loc, spellings[0]), f"{spellings[0]} is missing{also}"))
        return 1

    def _integer(self, name: str, value: Any, low: int, high: int) -> int:
        if isinstance(value, float) and math.isfinite(value) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(name, f"{_show(value)} is not an integer")
        if not low <= value <= high:
            raise self.invalid(name, f"{_show(value)} is outside {low} to {high:,}")
        return value

    def _items(self, name: str, value: Any, length: int | None) -> tuple[Any, ...] | None:
        if value in (_ABSENT, None):
            return None
        if not isinstance(value, list | tuple):
            raise self.invalid(name, f"{_show(value)} is not a list")
        if len(value) > MAX_LAYERS:
            raise self.invalid(name, f"{len(value):,} entries are more than {MAX_LAYERS:,}")
        if length is not None and len(value) != length:
            raise self.invalid(name, f"{len(value)} entries for {length} layers")
        return tuple(value)


def _show(value: Any) -> str:
    """A short, safe rendering of a value for a message; never walks deep into it."""
    if isinstance(value, Mapping | list | tuple | set):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and abs(value) > 10**18:
        return "an integer beyond 10^18"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
