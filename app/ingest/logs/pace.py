"""How fast a run went, as progress bars, trainers and people print it."""

from __future__ import annotations

import re
from statistics import median

from app.ingest.logs.facts import Pace

_I = re.IGNORECASE
_DIGITS = r"\d[\d,]{0,12}(?:\.\d{1,6})?"
_NUMBER = rf"(?<![\d.,])(?P<x>{_DIGITS})"
_OTHER_BARS = re.compile(
    r"Loading checkpoint|Loading weights|Map\b|Tokeniz|Download|Fetching|Filter\b|Generating|Converting|Packing|shards", _I
)
_SECONDS, _A_STEP = r"(?:s|sec|secs|seconds?)", r"(?:step|iteration|iter|optimi[sz]er step)"
_TIMED = r"(?:step|iteration|iter|batch)s?[ _]?(?:times?|duration|latency|takes?|took|needs?|_s)[^\n\d]{0,30}?"
_MANY = r"(?:two|2|three|four|several|one|1|\d{1,4}) (?:nodes?|machines?|GPUs?)"
_STEPS: tuple[tuple[re.Pattern[str], float], ...] = (
    (re.compile(_NUMBER + r" ?s/(?:it|iter|step|batch)\b", _I), 1.0),
    (re.compile(rf"{_NUMBER} ?{_SECONDS} (?:per|a|an|/|each) ?{_A_STEP}\b", _I), 1.0),
    (re.compile(rf"{_NUMBER} ?ms (?:per|a|an|/|each) ?{_A_STEP}\b", _I), 1e-3),
    (re.compile(rf"{_A_STEP}[ _]?(?:time|duration|latency)?[^\n\d]{{0,24}}?\((?:ms|milliseconds)\)\s{{0,3}}[:=|]?\s{{0,3}}{_NUMBER}", _I),
     1e-3),
    (re.compile(rf"{_TIMED}{_NUMBER} ?ms\b", _I), 1e-3),
    (re.compile(rf"{_TIMED}{_NUMBER} ?{_SECONDS}?\b", _I), 1.0),
    (re.compile(rf"{_NUMBER} ?{_SECONDS} (?:for|on|with|over) {_MANY}", _I), 1.0),
)  # fmt: skip
_A_SECOND = r"(?:/|per)[ _]?s(?:ec(?:ond)?)?"
_RATES = re.compile(
    rf"{_NUMBER} ?(?:it|iter|iters|steps?|batch(?:es)?)/s(?:ec)?\b|(?:it|steps?|iterations?)[ _]{_A_SECOND}[^\n\d]{{0,10}}(?P<y>{_DIGITS})",
    _I,
)
_DEVICE = r"[ _/]?(?:per[ _]|/|a )?(?:GPU|device|card)"
_TOKENS = re.compile(
    rf"{_NUMBER}(?P<k>k)? ?tok(?:ens?)?[ _]?{_A_SECOND}(?P<gpu>{_DEVICE})?|"
    rf"(?:tok(?:ens?)?[ _]?{_A_SECOND}|\btgs\b|\btps\b|\bWPS\b)(?P<gpu2>{_DEVICE})?[^\n\d]{{0,12}}(?P<y>{_DIGITS})", _I,
)  # fmt: skip
_SAMPLES = re.compile(
    rf"{_NUMBER} ?(?:samples?|sequences?|examples?)[ _]?{_A_SECOND}|"
    rf"(?:train_)?samples?[ _]?{_A_SECOND}[^\n\d]{{0,10}}(?P<y>{_DIGITS})|SamplesPerSec[^\n\d]{{0,6}}(?P<z>{_DIGITS})", _I,
)  # fmt: skip


def pace_of(text: str) -> Pace:
    """Steps, tokens or samples a second; of many the median, bars of loading and of data left out."""
    lines = "\n".join(line[:4000] for line in re.split(r"[\r\n]+", text) if not _OTHER_BARS.search(line))
    step_s, quoted = _step(lines)
    tokens, per_gpu, said = _tokens(lines)
    samples = [float(number.replace(",", "")) for match in _SAMPLES.finditer(lines) if (number := match["x"] or match["y"] or match["z"])]
    return Pace(
        step_s=step_s, tokens_per_s=tokens, samples_per_s=median(samples) if any(samples) else None, per_gpu=per_gpu,
        quoted=(quoted or said)[:120],
    )  # fmt: skip


def _step(text: str) -> tuple[float | None, str]:
    for pattern, scale in _STEPS:
        found = [match for match in pattern.finditer(text) if float(match["x"].replace(",", "")) > 0]
        if found:
            # A bar prints many, of which the first ones are warm-up; people name the slow one first.
            values = [float(match["x"].replace(",", "")) * scale for match in found]
            return (median(values) if len(values) > 3 else values[0]), found[0][0].strip()
    rates = [float(number.replace(",", "")) for match in _RATES.finditer(text) if (number := match["x"] or match["y"])]
    rates = [rate for rate in rates if rate > 0]
    return (1 / median(rates), f"{median(rates):g} steps/s") if rates else (None, "")


def _tokens(text: str) -> tuple[float | None, bool, str]:
    found, per_gpu, said = [], False, ""
    for match in _TOKENS.finditer(text):
        value = float((match["x"] or match["y"]).replace(",", "")) * (1000 if match["k"] else 1)
        if value > 0:
            found.append(value)
            per_gpu = per_gpu or bool(match["gpu"] or match["gpu2"]) or "tgs" in match[0].lower()
            said = said or match[0].strip()
    return (median(found) if found else None), per_gpu, said
