"""English texts in another language: looked up whole, by pattern where figures are in them, or part by part.

The engine writes English and knows no other language. Its sentences are extracted with a slot for each figure, ``{0} of {1} at
its peak``; here a finished sentence finds the message it was made of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

SLOT = re.compile(r"\{\d\}")
"""A place in a message where a figure, a name or a phrase stands."""
_PROSE = re.compile(r"[A-Za-z]{2,},? [a-z]{2,}|(?<![\w./\-])[a-z]{3,}(?![\w./\-(=])| (?:at|by|in|is|of|on|or|to) ")
"""Two words in a row, or one in small letters that is no part of a name: what has neither is a name, a figure or a formula."""
_SENTENCES = re.compile(r"(?<=[.:?!]) (?=[A-Z])")
_ASIDE = re.compile(r"(.+) \(([^()]+)\)")
_JOINTS = {" · ": " · ", "; ": "；", ", ": "，", " and ": "和"}
"""What parts of a text are joined with, here and in Chinese."""
_KEPT, _WEAK = 8192, 4


_APART = re.compile(r"(?<=[\u4e00-\u9fff]) (?=[\u4e00-\u9fff])")
"""A space between two Chinese characters, left from one beside a slot."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A message with slots; a weak one says so little that only what is known takes its slots."""

    msgstr: str
    regex: re.Pattern[str]
    is_weak: bool


class Phrases:
    """The messages of one language."""

    def __init__(self, messages: Mapping[str, str]) -> None:
        self._exact = dict(messages)
        self._by_start: dict[str, list[_Pattern]] = {}
        slotted = [msgid for msgid in messages if SLOT.search(msgid) and _words(msgid)]
        for msgid in sorted(slotted, key=lambda text: -len(SLOT.sub("", text))):
            pattern = _Pattern(messages[msgid], _regex(msgid), is_weak=len(re.findall("[A-Za-z]", SLOT.sub("", msgid))) <= _WEAK)
            self._by_start.setdefault(_start(msgid), []).append(pattern)
        self.patterns = tuple(slotted)
        self.find: Callable[[str], str | None] = lru_cache(maxsize=_KEPT)(self._find)

    def _find(self, text: str) -> str | None:
        """The text in this language; None where a part of it is not known."""
        exact = self._exact.get(text) or self._exact.get(text[:1].lower() + text[1:])
        return exact or self._split(text, "; ") or self._split(text, ", ") or self._whole(text) or self._in_parts(text)

    def _in_parts(self, text: str) -> str | None:
        sentences = _SENTENCES.split(text)
        if len(sentences) > 1:
            return self._joined(sentences, "")
        for joint in (" · ", " and "):
            if (found := self._split(text, joint)) is not None:
                return found
        if (match := _ASIDE.fullmatch(text)) and is_neutral(match[2]) and (found := self.find(match[1])) is not None:
            return f"{found}（{match[2]}）"
        label, colon, rest = text.partition(": ")
        if colon and label in self._exact and (found := self._part(rest)) is not None:
            return f"{self._exact[label]}：{found}"
        if text.endswith(".") and (found := self.find(text[:-1])) is not None:
            return found + "。"
        return None

    def _split(self, text: str, joint: str) -> str | None:
        parts = text.split(joint)
        return self._joined(parts, _JOINTS[joint]) if len(parts) > 1 else None

    def _whole(self, text: str) -> str | None:
        for tried in dict.fromkeys((text, text[:1].lower() + text[1:])):
            for pattern in (*self._by_start.get(_start(tried), ()), *self._by_start.get("", ())):
                if (match := pattern.regex.fullmatch(tried)) and (found := self._filled(pattern, match.groupdict())) is not None:
                    return found
        return None

    def _filled(self, pattern: _Pattern, values: Mapping[str, str]) -> str | None:
        if pattern.is_weak and not all(is_neutral(value) or value in self._exact for value in values.values()):
            return None
        put = {slot: value if " " not in value and value not in self._exact else self._part(value) for slot, value in values.items()}
        if any(value is None for value in put.values()):
            return None
        return _APART.sub("", SLOT.sub(lambda slot: str(put[f"s{slot.group()[1:-1]}"]), pattern.msgstr))

    def _joined(self, parts: Iterable[str], joint: str) -> str | None:
        found = [self._part(part) for part in parts]
        return None if None in found else joint.join(map(str, found))

    def _part(self, text: str) -> str | None:
        return text if is_neutral(text) and text not in self._exact else self.find(text)


def is_neutral(text: str) -> bool:
    """Whether a text is the same in every language: a name, a figure, a formula.

    Example:
        >>> [is_neutral(text) for text in ("61.4 GiB", "llama-3.1-8b", "ZeRO-2", "world_size", "on 2 ranks", "needs more")]
        [True, True, True, True, False, False]
    """
    return not _PROSE.search(text)


def _words(msgid: str) -> bool:
    """Whether a pattern says enough to be recognised by."""
    return bool(re.search(r"[A-Za-z]{2,}", SLOT.sub("", msgid)))


def _start(text: str) -> str:
    """The first word, by which patterns are kept; nothing where a slot is in it."""
    word = text.split(" ", 1)[0]
    return "" if "{" in word else word


def _regex(msgid: str) -> re.Pattern[str]:
    parts = SLOT.split(msgid)
    slots = [slot[1:-1] for slot in SLOT.findall(msgid)]
    seen: set[str] = set()
    regex = re.escape(parts[0])
    for slot, rest in zip(slots, parts[1:], strict=True):
        some = r".+[.:?!]|\S+" if regex == "" and rest == " " else ".+?"  # a sentence or a name before a slot
        regex += f"(?P=s{slot})" if slot in seen else f"(?P<s{slot}>{some})"
        seen.add(slot)
        regex += re.escape(rest)
    return re.compile(regex, re.DOTALL)
