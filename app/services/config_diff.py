"""An existing configuration file against the plan's: read, not compared as text, so that order and spelling do not count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from app.domain.errors import InvalidRequestError
from app.ingest.config_text import read_text
from app.services.config_meanings import meaning_of

Kind = Literal["differs", "only yours", "only the plan's", "same"]
FileName = Literal["ds_config.json", "accelerate.yaml"]
MAX_KEYS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDiff:
    """One key of either file.

    Attributes:
        key: its path with dots.
        yours, ours: its value in the given file and in the plan's, as written; None where it is not there.
        changes: what the key changes, or why the two come to the same; empty where nothing is known.
    """

    key: str
    kind: Kind
    yours: str | None
    ours: str | None
    changes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDiff:
    """Both files, key by key, in the order of the given one."""

    file: FileName
    rows: tuple[KeyDiff, ...]

    def of(self, kind: Kind) -> tuple[KeyDiff, ...]:
        """The keys of one kind."""
        return tuple(row for row in self.rows if row.kind == kind)


def config_diff(text: str, files: Mapping[str, str]) -> ConfigDiff:
    """Compare a configuration file as found with the plan's own of its kind.

    Args:
        text: a ds_config.json or an accelerate.yaml.
        files: the plan's files by name.

    Raises:
        InvalidRequestError: at ``existing``: the text is no such file, or the plan has none of its kind.
    """
    given, file = _read(text), kind_of(text)
    if file not in files:
        has = f"it has {', '.join(files)}" if files else "it has no files"
        hint = (
            "plan with the framework DeepSpeed to get one"
            if file == "ds_config.json"
            else "plan with the framework DeepSpeed or FSDP2 to get one"
        )
        raise InvalidRequestError.at("existing", msg=f"this is a {file}, and the plan has none: {has}", hint=hint)
    return ConfigDiff(file=file, rows=tuple(_rows(file, given, _read(files[file]))))


def kind_of(text: str) -> FileName:
    """Which file a text is: one that accelerate reads, or DeepSpeed's own.

    Raises:
        InvalidRequestError: at ``existing``: it is neither.
    """
    return "accelerate.yaml" if read_text(text, loc=("existing",)).kind in ("accelerate", "fsdp") else "ds_config.json"


def _rows(file: FileName, given: Mapping[str, Any], planned: Mapping[str, Any]) -> Iterator[KeyDiff]:
    yours, ours = dict(_flat(given)), dict(_flat(planned))
    if max(len(yours), len(ours)) > MAX_KEYS:
        raise InvalidRequestError.at("existing", msg=f"the file has {len(yours):,} keys; at most {MAX_KEYS:,} are compared")
    for key in [*yours, *(key for key in ours if key not in yours)]:
        changes = meaning_of(file, key)
        if key not in ours:
            yield KeyDiff(key=key, kind="only yours", yours=_written(yours[key]), ours=None, changes=changes)
        elif key not in yours:
            yield KeyDiff(key=key, kind="only the plan's", yours=None, ours=_written(ours[key]), changes=changes)
        else:
            kind: Kind = "same" if _alike(yours[key], ours[key]) else "differs"
            if yours[key] == "auto" and kind == "differs":
                changes = f"auto: the launcher fills it in, from the Trainer's arguments. {changes}".strip()
            yield KeyDiff(key=key, kind=kind, yours=_written(yours[key]), ours=_written(ours[key]), changes=changes)


def _read(text: str) -> Mapping[str, Any]:
    """The file as its library reads it.

    Raises:
        InvalidRequestError: at ``existing``: it is no configuration.
    """
    return read_text(text, loc=("existing",)).config


def _flat(value: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by dotted path; a list is a leaf, as is an empty object."""
    for key, inner in value.items():
        here = f"{path}{key}"
        if isinstance(inner, dict) and inner:
            yield from _flat(inner, here + ".")
        else:
            yield here, inner


def _alike(yours: Any, ours: Any) -> bool:
    """Equal as the library reads them: ``5e8`` is 500000000; ``true`` is not 1, but is yaml's ``'yes'`` as text."""
    if isinstance(yours, bool) or isinstance(ours, bool):
        return _truth(yours) is not None and _truth(yours) == _truth(ours)
    if isinstance(yours, (int, float, str)) and isinstance(ours, (int, float, str)):
        return yours == ours or (_number(yours) is not None and _number(yours) == _number(ours))
    return bool(yours == ours)


def _truth(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "yes": True, "false": False, "no": False}.get(value.lower()) if isinstance(value, str) else None


def _number(value: float | str) -> float | None:
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _written(value: Any) -> str:
    """A value as JSON; a whole number without a point, however it was spelled."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()[:200]
    except (orjson.JSONEncodeError, TypeError):
        return str(value)[:200]
