"""A diagnosis as a page shows it: words and formatted figures, no arithmetic left to do."""

from __future__ import annotations

from typing import Any

from app.domain.units import format_gib
from app.services.diagnose.result import Diagnosis, Remedy
from app.web.charts import seconds

DEVICES = {"gpu": "GPU memory", "host": "host memory of a node", "nvme": "disk", "none": "neither memory nor disk"}
MOMENTS = {
    "initialisation": "while the engine is built", "forward": "in forward", "loss": "in the loss", "backward": "in backward",
    "reduction": "while gradients are reduced", "step": "in the optimizer step", "load": "while the model is loaded",
    "save": "while it is saved",
}  # fmt: skip


def diagnosis_view(found: Diagnosis) -> dict[str, Any]:
    """What the template needs."""
    expected, slow = found.expected, found.slowness
    return {
        "cause": found.cause,
        "facts": [
            ("What was short", DEVICES[found.device]),
            *([("When", MOMENTS[found.moment])] if found.moment else []),
            ("How sure", f"{100 * found.confidence_frac:.0f} %"),
        ],
        "tensor": found.tensor,
        "tensor_size": size(found.tensor.bytes) if found.tensor else "",
        "others": [(other.name, size(other.bytes), other.arithmetic, f"{100 * other.confidence_frac:.0f} %") for other in found.others],
        "remedies": [_remedy(remedy) for remedy in found.remedies],
        "slow": slow is not None,
        "useless": found.would_not_help,
        "missing": found.missing,
        "notes": found.notes,
        "expected": [
            ("Settings", expected.settings),
            ("GPU needs", f"{format_gib(expected.needed_bytes)} of {format_gib(expected.capacity_bytes)}, at {expected.peak_moment}"),
            ("Host needs",
             format_gib(expected.host_bytes) + (f" of {format_gib(expected.host_capacity_bytes)}" if expected.host_capacity_bytes else "")),
            ("Step", seconds(expected.step_s)),
        ] if expected else [],
        "terms": [(name, format_gib(bytes_)) for name, bytes_ in expected.largest_terms] if expected else [],
        "parts": [(name, seconds(value)) for name, value in slow.parts] if slow else [],
    }  # fmt: skip


def size(bytes_: int | None) -> str:
    """Bytes in GiB; in words where they are not known."""
    return "size not known" if bytes_ is None else format_gib(bytes_)


def _remedy(remedy: Remedy) -> dict[str, Any]:
    change = remedy.step_s_change
    return {
        "label": remedy.label,
        "enough": remedy.enough,
        "frees": "not computed" if remedy.frees_bytes is None else format_gib(remedy.frees_bytes),
        "step": "not computed"
        if change is None
        else "no change"
        if abs(change) < 1e-4
        else ("+" if change > 0 else "−") + seconds(abs(change)),
        "settings": [(path, str(value)) for path, value in remedy.settings.items()],
        "why": remedy.why,
    }
