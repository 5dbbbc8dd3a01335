"""Pages of cards: which card is on which page, in which part, and what is shown of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from app.catalog.glossary import load_symbols
from app.domain.cards import CARDS, Card
from app.domain.memory.moments import IN_BLOCKS, MOMENT_LABELS, MOMENTS
from app.domain.sources import source
from app.domain.units import GIB, format_gib, format_number
from app.services.method.examples import work
from app.services.method.figures import Figure, all_cards, figures
from app.services.method.rules import TIME_RULES, TRAFFIC_RULES, Rule, explained
from app.web import charts
from app.web.cards import EXACTNESS
from app.web.forms import to_fields

SMALL_BYTES = GIB / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A section of a page: cards whose figures are of one place, or whose keys begin alike."""

    title: str
    lead: str
    places: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    def holds(self, key: str, figure: Figure) -> bool:
        """Whether a card belongs here."""
        return (not self.places or figure.place in self.places) and (not self.keys or key.startswith(self.keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A page of cards.

    Attributes:
        title, lead: its heading and its first paragraph.
        example: the worked example whose plan it opens with.
        parts: in order; a card is in the first that holds it.
        rules: functions that decide without a figure of their own.
    """

    title: str
    lead: str
    example: str
    parts: tuple[Part, ...]
    rules: tuple[Rule, ...] = ()


_TIME = ("speed.compute.", "speed.offload.gpu_update_s")

ROOMS: Mapping[str, Room] = {
    "memory": Room(
        title="Memory ledger",
        lead="Every term of the memory of one GPU, of a node's host and of its disks. Terms are alive at some moments of the step and "
        "not at others: the peak is the largest moment, not the sum of every term's most.",
        example="zero3",
        parts=(
            Part(title="GPU: states", lead="Parameters, gradients, master weights and the optimizer's states, and their copies.",
                 places=("gpu",), keys=("memory.states.",)),
            Part(title="GPU: activations and logits", lead="What forward leaves for backward, what one block works with, and the loss.",
                 places=("gpu",), keys=("memory.activations.", "memory.logits.", "memory.stages.")),
            Part(title="GPU: gathered copies and buffers", lead="What is whole for a while because it is computed with, sent or stepped.",
                 places=("gpu",), keys=("memory.buffers.",)),
            Part(title="GPU: around the tensors", places=("gpu",),
                 lead="What the allocator keeps above live tensors, and what the process holds outside it."),
            Part(title="Host memory of a node", lead="What offload and loading take, over all ranks of the node.", places=("host",)),
            Part(title="Disks of a node", lead="What NVMe offload keeps on disk, over all ranks of the node.", places=("nvme",)),
        ),
    ),
    "traffic": Room(
        title="Traffic",
        lead="What one GPU sends in one optimizer step, collective by collective, and how long links take for it.",
        example="zero3",
        parts=(Part(title="Collectives", lead="Bytes that one GPU sends in one optimizer step.", places=("traffic",)),),
        rules=TRAFFIC_RULES,
    ),
    "time": Room(
        title="Time",
        lead="Where one optimizer step goes: compute, the traffic it cannot hide, and the update. Offloaded work has a page of its own.",
        example="zero3",
        parts=(
            Part(title="Compute", lead="Seconds of one optimizer step on one GPU.", keys=("speed.compute.",)),
            Part(title="Update", lead="Seconds of the optimizer's step where states are on the GPU.", keys=_TIME),
        ),
        rules=TIME_RULES,
    ),
    "offload": Room(
        title="Offload",
        lead="What it costs in time to keep states or activations off the GPU. What they take of host memory and disks is in the memory "
        "ledger.",
        example="cpu",
        parts=(Part(title="Offloaded work", lead="Seconds of one optimizer step.", places=("time",)),),
    ),
    "checkpoints": Room(
        title="Checkpoints",
        lead="What one save writes over all ranks, the host memory of whoever turns it into ordinary files, and what inference holds.",
        example="zero3",
        parts=(
            Part(title="One save", lead="Bytes over all ranks.", keys=("checkpoint.terms.saved_", "checkpoint.terms.module_")),
            Part(title="Inference", lead="What running the trained model takes.",
                 keys=("checkpoint.terms.inference_", "checkpoint.terms.token_")),
            Part(title="Turning it into files", lead="Host memory of the process that does it.", places=("checkpoint",)),
        ),
    ),
}  # fmt: skip
"""Pages in order; the cards of a page are those of its domain."""

_DOMAINS: Mapping[str, tuple[str, ...]] = {
    "memory": ("memory.",), "traffic": ("traffic.",), "time": _TIME, "offload": ("speed.",), "checkpoints": ("checkpoint.",),
}  # fmt: skip
UNITS = {
    "gpu": "per GPU",
    "host": "per node",
    "nvme": "per node",
    "traffic": "per GPU and step",
    "time": "per step",
    "checkpoint": "in all",
}


def room_of(key: str) -> str:
    """The page a card is on.

    Example:
        >>> room_of("speed.offload.pcie_s"), room_of("speed.offload.gpu_update_s"), room_of("memory.nvme.nvme_state_bytes")
        ('offload', 'time', 'memory')
    """
    return next(name for name, starts in _DOMAINS.items() if key.startswith(starts))


def anchor(key: str) -> str:
    """Where on its page a card is."""
    return key.rsplit(".", 1)[1]


def href(key: str) -> str:
    """Address of a card."""
    return f"/method/{room_of(key)}#{anchor(key)}"


def room_view(name: str) -> dict[str, Any]:
    """A page of cards."""
    room, found = ROOMS[name], figures()
    cards = sorted(((key, card, found[key]) for key, card in all_cards().items() if room_of(key) == name), key=_in_order(room.example))
    sections: list[list[dict[str, Any]]] = [[] for _ in room.parts]
    for key, card, figure in cards:
        place = next(n for n, part in enumerate(room.parts) if part.holds(key, figure))
        sections[place].append(_card(key, card, figure))
    used = dict.fromkeys(symbol for _, card, _ in cards for symbol in card.named)
    examples = dict.fromkeys(figure.example for _, _, figure in cards)
    return {
        "name": name,
        "title": room.title,
        "lead": room.lead,
        "parts": [{"title": p.title, "lead": p.lead, "cards": shown} for p, shown in zip(room.parts, sections, strict=True)],
        "rules": [_rule(rule) for rule in room.rules],
        "symbols": [{"symbol": s, "meaning": load_symbols()[s].meaning} for s in sorted(used)],
        "example": example_view(room.example),
        "examples": [example_view(key) for key in examples],
    }


def _in_order(example: str) -> Callable[[tuple[str, Card, Figure]], tuple[int, bool, int]]:
    """Terms of one colour together, those of the page's own example first, each as the code has them."""
    categories = {category: place for place, category in enumerate(charts.CATEGORIES)}
    written = {key: place for place, key in enumerate(CARDS)}
    return lambda c: (categories.get(c[2].category, len(categories)), c[2].example != example, written[c[0]])


def example_view(key: str) -> dict[str, str]:
    """A worked example with the address of its plan."""
    worked = work(key)
    return {"key": key, "title": worked.example.title, "href": plan_href(worked.example.body)}


def plan_href(body: Mapping[str, Any]) -> str:
    """Address of the answer to a request."""
    return f"/?{urlencode(to_fields(body))}"


def amount(value: float, place: str = "gpu") -> str:
    """Seconds for times; GiB, MiB or bytes for everything else."""
    if place == "time":
        return charts.seconds(value)
    if value >= SMALL_BYTES:
        return format_gib(value)
    return f"{format_number(value / 2**20)} MiB" if value >= 2**20 / 100 else f"{value:,.0f} bytes"


def exact(value: float, place: str = "gpu") -> str:
    """The figure without rounding for the eye."""
    return f"{value:.6g} s" if place == "time" else f"{value:,.0f} bytes"


def _card(key: str, card: Card, figure: Figure) -> dict[str, Any]:
    doc, found, module = explained(card.doc), source(card.source), key.rsplit(".", 1)[0].replace(".", "/")
    return {
        "id": anchor(key),
        "title": card.title,
        "css": figure.category,
        "category": figure.category.replace("_", " "),
        "sentence": doc.text[0],
        "more": list(doc.text[1:]),
        "equation": card.equation,
        "written": doc.equation,
        "assumes": doc.assumes,
        "alive": alive_words(figure.alive) or figure.lifetime,
        "example": figure.example,
        "formula": figure.formula,
        "value": amount(figure.value, figure.place),
        "exact": exact(figure.value, figure.place),
        "per": UNITS[figure.place],
        "changes_it": card.changes_it,
        "exactness": EXACTNESS[card.sureness],
        "fitted": card.sureness == "fitted",
        "source": {"key": card.source, "title": found.title, "url": found.url, "read": doc.source},
        "code": f"app/domain/{module}.py, {anchor(key)}",
    }


def alive_words(alive: Sequence[tuple[str, float]]) -> str:
    """Moments in words, with the share that is alive where that is not all.

    Example:
        >>> alive_words([("loss", 1.0), ("backward", 0.5)])
        'loss backward, backward of the last block (50 %)'
    """
    whole = [moment for moment, share in alive if share == 1]
    if whole == list(MOMENTS):
        return "at every moment"
    if whole == list(MOMENTS[1:]) and len(alive) == len(whole):
        return "from the first forward on"
    words = [MOMENT_LABELS[moment] + _share(share) for moment, share in alive]
    blocks = [MOMENT_LABELS[moment] for moment in IN_BLOCKS]
    if all(block in words for block in blocks):
        first = words.index(blocks[0])
        words[first : first + len(blocks)] = ["backward of the blocks"]
    return ", ".join(words)


def _share(share: float) -> str:
    if share == 1:
        return ""
    return f" ({format_number(share)} ×)" if share > 1 else f" ({format_number(100 * share)} %)"


def _rule(rule: Rule) -> dict[str, Any]:
    doc, (module, name) = rule.explained, rule.where.split(".", 2)[:2]
    return {
        "title": rule.title,
        "text": list(doc.text),
        "equation": doc.equation,
        "source": doc.source,
        "code": f"app/domain/{module}/{name}.py, {rule.where.split('.', 2)[2]}",
    }
