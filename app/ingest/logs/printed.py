"""Settings that libraries print when they start: DeepSpeed's configuration, the Trainer's banner, a pasted ds_config.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_I = re.IGNORECASE
_IS = r"[\"']?\s{0,4}[ .]{0,60}[:=.]{0,2}\s{0,4}"
_NUMBER = r"(?P<x>\d[\d,]{0,14}(?:\.\d{1,12})?(?:e\+?\d{1,2})?)"
_WHOLE: Mapping[str, re.Pattern[str]] = {
    "micro_batch": re.compile(
        r"(?:train_micro_batch_size_per_gpu|per_device_train_batch_size|Instantaneous batch size per device)" + _IS + _NUMBER, _I),
    "grad_accum": re.compile(r"(?:gradient_accumulation_steps|Gradient Accumulation steps)" + _IS + _NUMBER, _I),
    "reduce_bucket": re.compile(r"\breduce_bucket_size" + _IS + _NUMBER, _I),
    "sub_group": re.compile(r"\bsub_group_size" + _IS + _NUMBER, _I),
    "prefetch": re.compile(r"prefetch_bucket_size" + _IS + _NUMBER, _I),
    "stage": re.compile(r"(?:zero_optimization_stage|\"stage\")" + _IS + r"(?P<x>[0-3])\b", _I),
    "buffer_count": re.compile(r"\bbuffer_count" + _IS + _NUMBER, _I),
    "buffer_size": re.compile(r"\bbuffer_size" + _IS + _NUMBER, _I),
    "max_in_cpu": re.compile(r"\bmax_in_cpu" + _IS + _NUMBER, _I),
}  # fmt: skip
_MOST = 2**50


def printed_settings(text: str) -> dict[str, int]:
    """Whole numbers by the name of the setting; of one that is printed several times the last."""
    found: dict[str, int] = {}
    for name, pattern in _WHOLE.items():
        for match in pattern.finditer(text):
            value = _number(match["x"])
            if value is not None and 0 <= value <= _MOST:
                found[name] = int(value)
    return found


def _number(text: str) -> float | None:
    read: Callable[[str], float] = float
    try:
        return read(text.replace(",", ""))
    except ValueError:
        return None
