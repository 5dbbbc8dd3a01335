"""The language of a page: what a reader chose, or the browser asks for, and how the words of the templates become it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from gettext import GNUTranslations

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from fastapi import Request, Response
from markupsafe import Markup, escape

from app.resources import resource_dir
from app.web.phrases import Phrases, is_neutral

COOKIE, PARAMETER = "lang", "lang"
VARY = "Accept, Accept-Language, Cookie"
"""What the choice, and that between page and JSON, depend on."""
_YEAR_S = 31_536_000
_MOST_ACCEPTED = 20
"""Entries of Accept-Language that are looked at."""
_QUALITY = re.compile(r"\s*q\s*=\s*(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)\s*")


@dataclass(frozen=True, slots=True)
class Language:
    """A language that pages are in.

    Attributes:
        key: in the address, the cookie and ``Accept-Language``.
        tag: as in ``<html lang>``.
        short, name: in the header, in the language itself.
        folder: of its catalogue; empty for the one the sources are written in.
    """

    key: str
    tag: str
    short: str
    name: str
    folder: str = ""


LANGUAGES = {
    "en": Language("en", "en", "EN", "English"),
    "zh": Language("zh", "zh-Hans", "中", "简体中文", "zh_Hans"),
}
ENGLISH = LANGUAGES["en"]
_current: ContextVar[Language] = ContextVar("language", default=ENGLISH)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """A language's messages, for gettext and for sentences that the engine wrote."""

    translations: GNUTranslations
    phrases: Phrases


@cache
def catalogue(folder: str) -> Catalogue:
    """The messages of ``locale/folder``, compiled when they are first asked for: 0.3 s, once a process."""
    path = resource_dir("locale") / folder / "LC_MESSAGES" / "messages.po"
    with path.open("rb") as file:
        found = read_po(file)
    compiled = io.BytesIO()
    write_mo(compiled, found)
    compiled.seek(0)
    plain = {m.id: m.string for m in found if isinstance(m.id, str) and m.id and isinstance(m.string, str) and m.string}
    return Catalogue(GNUTranslations(compiled), Phrases(plain))


def language_of(request: Request) -> Language:
    """The address's language, else the cookie's, else the best of what the browser accepts, else English."""
    for key in (request.query_params.get(PARAMETER), request.cookies.get(COOKIE)):
        if key in LANGUAGES:
            return LANGUAGES[key]
    return accepted(request.headers.get("accept-language", ""))


def accepted(header: str) -> Language:
    """The language a browser likes best of those there are; the first of equals.

    Example:
        >>> [accepted(h).key for h in ("zh-CN,zh;q=0.9,en;q=0.8", "de, en;q=0.5, zh;q=0.4", "zh;q=0", "")]
        ['zh', 'en', 'en', 'en']
    """
    best, liked = ENGLISH, 0.0
    for entry in header.split(",")[:_MOST_ACCEPTED]:
        tag, _, parameter = entry.partition(";")
        found = LANGUAGES.get(tag.strip().lower().partition("-")[0])
        match = _QUALITY.fullmatch(parameter) if parameter else None
        quality = float(match.group(1)) if match else 0.0 if parameter else 1.0
        if found and quality > liked:
            best, liked = found, quality
    return best


def current() -> Language:
    """The language of the page that is being made."""
    return _current.get()


@contextmanager
def speaking(language: Language) -> Iterator[None]:
    """Make what is made inside in a language."""
    token = _current.set(language)
    try:
        yield
    finally:
        _current.reset(token)


def keep(response: Response, request: Request) -> None:
    """Remember the choice of an address for the pages after it."""
    given = request.query_params.get(PARAMETER)
    if given in LANGUAGES and request.cookies.get(COOKIE) != given:
        remember(response, given, secure=request.url.scheme == "https")


def remember(response: Response, key: str, *, secure: bool) -> None:
    """Put a choice into the browser, for a year."""
    response.set_cookie(COOKIE, key, max_age=_YEAR_S, path="/", secure=secure, httponly=True, samesite="lax")


def gettext(message: str) -> str:
    """A message of a template."""
    language = current()
    return catalogue(language.folder).translations.gettext(message) if language.folder else message


def ngettext(singular: str, plural: str, count: int) -> str:
    """A message of a template that depends on a count."""
    language = current()
    if not language.folder:
        return singular if count == 1 else plural
    return catalogue(language.folder).translations.ngettext(singular, plural, count)


def in_words(text: str) -> str:
    """An English text in the page's language; as it is where it is not translated."""
    language = current()
    return (catalogue(language.folder).phrases.find(str(text)) or str(text)) if language.folder else str(text)


def marked(text: str) -> Markup:
    """The same as HTML: what is not translated is marked as English, for whatever reads it out."""
    language = current()
    if not language.folder:
        return escape(text)
    found = catalogue(language.folder).phrases.find(str(text))
    if found is not None or is_neutral(str(text)):
        return escape(str(text) if found is None else found)
    return Markup('<span lang="en">{}</span>').format(text)
