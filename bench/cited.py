"""Addresses of published measurements, made from how they are cited."""

from __future__ import annotations

import re

_REPOSITORY = re.compile(r"github (?P<repo>[\w.-]+/[\w.-]+)(?P<rest>.*)", re.DOTALL)
_PLACES = (
    (re.compile(r"\bcommit (?P<at>[0-9a-f]{7,40})"), "commit/{at}"),
    (re.compile(r"\bissue #(?P<at>\d+)"), "issues/{at}"),
    (re.compile(r"\bpull #(?P<at>\d+)"), "pull/{at}"),
    (re.compile(r"^ (?P<at>[\w./-]+\.(?:md|csv|rst|sh|svg|py))\b"), "blob/HEAD/{at}"),
)
_ARXIV = re.compile(r"arXiv (?P<at>\d{4}\.\d{5})")


def link_of(cited: str) -> str:
    """Where a citation can be read; empty where it names no public place.

    Example:
        >>> link_of("github QwenLM/Qwen README.md Profiling of Memory and Speed (2023-12)")
        'https://github.com/QwenLM/Qwen/blob/HEAD/README.md'
        >>> link_of("github pytorch/torchtitan commit f4614f333 (2026-08)"), link_of("arXiv 2311.05610 (Hagemann et al. 2023)")
        ('https://github.com/pytorch/torchtitan/commit/f4614f333', 'https://arxiv.org/abs/2311.05610')
    """
    if paper := _ARXIV.match(cited):
        return f"https://arxiv.org/abs/{paper['at']}"
    found = _REPOSITORY.match(cited)
    if found is None:
        return ""
    root = f"https://github.com/{found['repo']}"
    places = (f"{root}/{path.format(at=at['at'])}" for pattern, path in _PLACES if (at := pattern.search(found["rest"])))
    return next(places, root)
