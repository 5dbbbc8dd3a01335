"""Configuration keys by release: which library releases are claimed, and what each of their keys needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from app.catalog.data import document
from app.domain.errors import InvalidRequestError
from app.domain.versions import Key, Versions, release_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What releases of a library get wrong, from one release to the one that mends it, under some strategies with accumulation."""

    library: str
    since: str
    fixed: str
    strategies: tuple[str, ...]
    says: str
    instead: str

    def concerns(self, release: str) -> bool:
        """Whether that release has it."""
        return release_of(self.since) <= release_of(release) < release_of(self.fixed)


@cache
def load_faults() -> tuple[Fault, ...]:
    """Every known fault of a claimed release that makes a written file train wrongly."""
    return tuple(
        Fault(
            library=entry["library"], since=entry["from"], fixed=entry["fixed"], strategies=tuple(entry["strategies"]),
            says=entry["says"], instead=entry["instead"],
        )
        for entry in document("keys")["faults"]
    )  # fmt: skip


@cache
def load_keys() -> tuple[Key, ...]:
    """Every key of the catalogue, in its order."""
    return tuple(_key(entry) for entry in document("keys")["keys"])


def oldest(library: str) -> str:
    """The oldest release that files are written for."""
    return str(document("keys")["libraries"][library]["oldest"])


def checked(library: str) -> str:
    """The newest release the keys were read in."""
    return str(document("keys")["libraries"][library]["checked"])


def versions_for(given: dict[str, str | None]) -> Versions | None:
    """The releases a request names; None where it names none at all.

    Args:
        given: release by library, None where it is left out.

    Raises:
        InvalidRequestError: no version, or one older than is claimed.
    """
    named = {library: version for library, version in given.items() if version is not None}
    for library, version in named.items():
        _check(library, version)
    if not named:
        return None
    return Versions(given=tuple(named.items()), keys=tuple(key for key in load_keys() if key.since))


def _check(library: str, version: str) -> None:
    field, first = f"{library}_version", oldest(library)
    try:
        release = release_of(version)
    except ValueError as error:
        raise InvalidRequestError.at(field, msg=f"{field} {error}", hint=f"write it as {checked(library)}") from None
    if release < release_of(first):
        raise InvalidRequestError.at(
            field,
            msg=f"{field} {version} is older than {first}, the oldest release that files are written for",
            hint=f"use {first} or newer, or leave it out for {checked(library)}",
        )


def _key(entry: dict[str, object]) -> Key:
    values = {name: entry[name] for name in ("library", "since", "until", "inert", "below", "loses", "replaced_by") if name in entry}
    defaults = tuple((since or "", value) for since, value in entry.get("defaults", ()))  # type: ignore[attr-defined]
    return Key(name=str(entry["key"]), defaults=defaults, **values)  # type: ignore[arg-type]
