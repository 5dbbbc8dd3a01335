"""Write docs/method from the term cards, one page a room of the domain, and docs/glossary.md (``make bench ARGS=method``)."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from app.audit.rules import RULES
from app.catalog.glossary import load_symbols, load_terms
from app.domain.cards import Card
from app.domain.parallel.deepspeed_names import COUNTERPARTS
from app.domain.parallel.fsdp_names import CALLS, KEYS, SHARDINGS
from app.domain.parallel.strategy import STRATEGIES
from app.domain.sources import SOURCES
from app.services.method.figures import all_cards

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "method"
GLOSSARY, AUDIT_RULES = FOLDER.parent / "glossary.md", FOLDER.parent / "rules.md"
INTRO = {
    "memory": "Memory of one GPU, of one node's host and of its disks. GPU terms are alive at some moments of the step and not at others; "
    "the peak is the largest moment, not a sum of maxima.",
    "traffic": "What one GPU sends in one optimizer step.",
    "checkpoint": "What one save writes over all ranks, the host memory of whoever turns it into ordinary files, and what inference holds.",
    "speed": "Where the time of one optimizer step goes.",
}


def pages() -> dict[str, str]:
    """File name to text."""
    rooms = defaultdict(list)
    for key, card in all_cards().items():
        rooms[key.split(".")[0]].append(card)
    out = {f"{room}.md": _page(room, cards) for room, cards in rooms.items()}
    out["strategies.md"] = _strategies()
    out["fsdp_names.md"] = _fsdp_names()
    out["deepspeed_names.md"] = _deepspeed_names()
    return out


def glossary() -> str:
    """Words and symbols, as the page /method/glossary shows them."""
    lines = ["# Glossary", "", "Generated from `app/catalog/glossary.json` by `make bench ARGS=method`; do not edit.", ""]
    lines += ["| word | meaning here |", "|---|---|", *(f"| {w.word} | {w.meaning} |" for w in load_terms())]
    lines += ["", "## Symbols of the equations", "", "| symbol | meaning |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{w.word}` | {w.meaning} |" for w in load_symbols().values()), ""])


def _page(room: str, cards: list[Card]) -> str:
    lines = [
        f"# {room.capitalize()}",
        "",
        "Generated from the term cards by `make bench ARGS=method`; do not edit.",
        "",
        INTRO.get(room, ""),
        "",
    ]
    for card in cards:
        found = SOURCES[card.source]
        source = f"[{found.title}]({found.url})" if found.url else found.title
        lines += [f"## {card.title}", "", f"`{card.equation}`", "", " ".join(card.doc.split("\n\n", maxsplit=1)[0].split()), ""]
        lines += [f"- exactness: {card.exactness}", f"- source: {source}"]
        lines += [f"- what changes it: {card.changes_it}"] if card.changes_it else []
        lines += [f"- in code: `app/domain/{card.key.rsplit('.', 1)[0].replace('.', '/')}.py`, `{card.key.rsplit('.', 1)[1]}`", ""]
    return "\n".join(lines)


def _strategies() -> str:
    lines = ["# Strategies", "", "Generated from `app/domain/parallel/strategy.py` by `make bench ARGS=method`; do not edit.", ""]
    lines += [
        "| strategy | framework | parameters | gradients | optimizer states | gathers per micro-step | gradients travel by | when |",
        "|---|---|---|---|---|---:|---|---|",
    ]
    words = {"none": "whole on every rank", "all": "divided over all ranks", "group": "divided over the shard group"}
    for s in STRATEGIES:
        when = "each micro-step" if s.reduces_each_micro_step else "once a step"
        after = ", then parameters are gathered" if s.gathers_after_step else ""
        lines.append(
            f"| {s.label} | {s.framework} | {words[s.parameters]} | {words[s.gradients]} | {words[s.states]} | {s.gathers} "
            f"| {s.reduce_op.replace('_', '-')} | {when}{after} |"
        )
    return "\n".join([*lines, ""])


def _fsdp_names() -> str:
    """FSDP1 and FSDP2 side by side."""
    lines = ["# FSDP1 and FSDP2", "", "Generated from `app/domain/parallel/fsdp_names.py` by `make bench ARGS=method`; do not edit.", ""]
    lines += ["A dash means that the other side has no counterpart; the last column says what takes its place.", "", "## Strategies", ""]
    lines += ["| FSDP1 | `reshard_after_forward` of FSDP2 | mesh of FSDP2 | nearest of DeepSpeed | remarks |", "|---|---|---|---|---|"]
    for s in SHARDINGS:
        mesh = "" if s.reshard is None else "copies × shards" if s.replicates else "one line of ranks"
        lines.append(f"| `{s.fsdp1}` | {'—' if s.reshard is None else f'`{s.reshard}`'} | {mesh or '—'} | {s.like or '—'} | {s.note} |")
    for title, rows in (("Keys of accelerate", KEYS), ("In Python", CALLS)):
        lines += ["", f"## {title}", "", "| FSDP1 | FSDP2 | remarks |", "|---|---|---|"]
        lines += [f"| {_code(r.fsdp1)} | {_code(r.fsdp2)} | {r.note} |" for r in rows]
    return "\n".join([*lines, ""])


def _deepspeed_names() -> str:
    """DeepSpeed and FSDP2 side by side."""
    lines = [
        "# DeepSpeed and FSDP2",
        "",
        "Generated from `app/domain/parallel/deepspeed_names.py` by `make bench ARGS=method`; do not edit.",
        "",
    ]
    lines += ["| DeepSpeed | FSDP2 | remarks |", "|---|---|---|"]
    lines += [f"| {_code(r.deepspeed)} | {_code(r.fsdp2)} | {r.note} |" for r in COUNTERPARTS]
    return "\n".join([*lines, ""])


def audit_rules() -> str:
    """Every rule of ``POST /audit``, a line each."""
    lines = ["# Rules of the audit", "", "Generated from `app/audit` by `make bench ARGS=method`; do not edit.", ""]
    lines += [f"{len(RULES)} rules. A rule that needs model, training or cluster is listed as not checked where the request has none.", ""]
    lines += ["| id | severity | what is found | what happens | what to do | releases | source |", "|---|---|---|---|---|---|---|"]
    for rule_id, rule in sorted(RULES.items()):
        card = rule.card
        span = " ".join(part for part in (f"from {card.since}" * bool(card.since), f"before {card.until}" * bool(card.until)) if part)
        releases = f"{card.library} {span}" if span else "all"
        cells = (rule_id, card.severity, card.title, f"{card.effect}: {card.why}", card.fix, releases, SOURCES[card.source].title)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*lines, ""])


def _code(name: str | None) -> str:
    return f"`{name}`" if name else "—"


def main() -> None:
    """Write every page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
        print(f"docs/method/{name}")
    GLOSSARY.write_text(glossary())
    AUDIT_RULES.write_text(audit_rules())
    print("docs/glossary.md", "docs/rules.md", sep="\n")


if __name__ == "__main__":
    main()
