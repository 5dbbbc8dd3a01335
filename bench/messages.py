"""``make messages``: collect what pages say into the catalogues, and say what is not translated.

Templates are read by Jinja's extractor. The engine's texts are English strings in Python, which knows no gettext: those of the
modules below are taken as they stand, f-strings with a slot for each expression, and cards, claims and words as they are loaded.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from babel.messages import Catalog
from babel.messages.pofile import read_po, write_po
from jinja2.ext import babel_extract

from app.catalog.claims import claim_topics, load_claims
from app.catalog.data import document
from app.catalog.glossary import load_symbols, load_terms
from app.catalog.keys import load_keys
from app.domain.parallel.deepspeed_names import COUNTERPARTS
from app.domain.parallel.fsdp_names import CALLS, KEYS, SHARDINGS
from app.domain.parallel.strategy import STRATEGIES
from app.services.method.evidence import evidence_of
from app.services.method.figures import all_cards
from app.services.method.rules import TIME_RULES, TRAFFIC_RULES, explained
from app.web.phrases import is_neutral
from bench.strings import strings

ROOT = Path(__file__).resolve().parents[1]
LOCALE = ROOT / "locale"
WORDS = LOCALE / "words.txt"
"""Words that pages show and that are no sentence anywhere: one a line."""
MODULES = (
    "domain/companions.py", "domain/diagnose", "services/audit.py", "services/audit_prediction.py", "services/audit_subject.py",
    "services/companions.py", "services/diagnose", "web/audit_view.py", "web/companion_form.py", "web/diagnose_form.py",
    "web/diagnose_view.py", "web/measurement_views.py",
    "domain/checkpoint", "domain/memory/moments.py", "domain/search/evaluate.py", "domain/search/explain.py",
    "domain/search/mesh.py", "domain/search/pinned.py", "domain/search/results.py", "domain/search/rules.py",
    "domain/search/scan.py", "domain/search/space.py", "domain/search/stretch.py", "domain/search/table.py", "domain/search/warn",
    "domain/search/ways_out.py", "services/cluster.py", "services/config_diff.py", "services/config_meanings.py",
    "services/method/examples.py", "services/method/lives.py", "services/plan.py", "services/releases.py", "services/replan.py",
    "web/cards.py", "web/catalog_pages.py", "web/catalog_rows.py", "web/charts.py", "web/checkpoint_view.py",
    "web/compare_pages.py", "web/diff_page.py", "web/fields.py", "web/figures", "web/form_view.py", "web/method",
    "web/report_page.py", "web/views.py", "web/what_if_page.py",
)  # fmt: skip
"""Whose strings pages show; folders count with all that is in them."""
ERRORS = (
    "services/measured.py", "services/measurements.py", "web/diagnose_form.py", "web/measurement_pages.py",
    "catalog/data.py", "domain/errors.py", "domain/parallel/mesh.py", "domain/search/batch.py", "domain/search/pins.py",
    "domain/search/planner.py", "domain/search/table.py", "domain/units.py", "services/bounds.py", "services/compare.py",
    "services/config_diff.py", "services/request.py", "services/resolve.py", "services/saved_plans.py", "web/delete_page.py",
    "web/forms.py", "web/origins.py", "web/problems.py", "web/sign_in.py", "web/validation.py", "web/what_if_page.py",
)  # fmt: skip
"""Whose errors a form can get."""
_DATED = re.compile(
    r'^"(POT-Creation-Date|PO-Revision-Date|Generated-By|Report-Msgid-Bugs-To|Last-Translator|Language-Team): .*\n', re.MULTILINE
)
Message = tuple[str | tuple[str, str], str]
"""A message, singular and plural where it has both, and the file it is from."""


def main() -> int:
    """Bring every catalogue up to date; 1 where a message waits for its translation."""
    waiting = 0
    for path in sorted(LOCALE.glob("*/LC_MESSAGES/messages.po")):
        catalog = updated(path)
        path.write_text(written(catalog), encoding="utf-8")
        missing = [m.id for m in catalog if m.id and (m.fuzzy or not all(m.string if isinstance(m.string, tuple) else (m.string,)))]
        waiting += len(missing)
        print(f"{path.relative_to(ROOT)}: {len(catalog)} messages, {len(missing)} not translated")
        for message in missing[:20]:
            print("  ", message)
    return 1 if waiting else 0


def updated(path: Path) -> Catalog:
    """A catalogue with what is extracted now, in its order; what is gone from the sources goes."""
    with path.open("rb") as file:
        catalog = read_po(file)
    catalog.update(extracted(), no_fuzzy_matching=True)
    catalog.obsolete.clear()
    return catalog


def written(catalog: Catalog) -> str:
    """The file of a catalogue, without what changes at each run."""
    out = io.BytesIO()
    write_po(out, catalog, width=0, no_location=False, include_lineno=False, omit_header=False, ignore_obsolete=True)
    return _DATED.sub("", out.getvalue().decode())


def extracted() -> Catalog:
    """Every message of the templates, the modules and the loaded texts."""
    catalog = Catalog()
    for message, place in (*_of_templates(), *_of_modules(), *_of_loaded(), *_of_words()):
        catalog.add(message, locations=[(place, 0)])
    return catalog


def _of_templates() -> Iterator[Message]:
    options = {"newstyle_gettext": "true", "trim_blocks": "true", "lstrip_blocks": "true", "silent": "false"}
    for path in sorted((ROOT / "templates").rglob("*.html")):
        with path.open("rb") as file:
            for _, _, message, _ in babel_extract(file, ("_", "gettext", "ngettext"), (), options):
                parts = [message] if isinstance(message, str) else [part for part in message or () if part]
                yield (parts[0] if len(parts) == 1 else (parts[0], parts[1])), str(path.relative_to(ROOT))


def _of_modules() -> Iterator[Message]:
    for name in MODULES:
        path = ROOT / "app" / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            words = "web" in file.parts
            for message in strings(file.read_text(encoding="utf-8"), words=words):
                yield message, str(file.relative_to(ROOT))
    for name in ERRORS:
        for message in strings((ROOT / "app" / name).read_text(encoding="utf-8"), words=False, raised=True):
            yield message, f"app/{name}"


def _of_loaded() -> Iterator[Message]:
    cards = [card for _, card in sorted(all_cards().items())]
    docs = [explained(card.doc) for card in cards]
    rules = [(rule.title, *rule.explained.text) for rule in (*TRAFFIC_RULES, *TIME_RULES)]
    claims = load_claims()
    groups: dict[str, Iterable[str]] = {
        "app/domain cards": (text for card in cards for text in (card.title, card.changes_it)),
        "app/domain docstrings": (text for doc in docs for text in (*doc.text, doc.assumes)),
        "app/domain rules": (text for rule in rules for text in rule),
        "app/catalog/claims.json": (*claim_topics().values(), *(text for c in claims for text in (c.claim, c.truth))),
        "app/services/method/evidence.py": (fact.what for c in claims for fact in evidence_of(c.key)),
        "app/catalog/glossary.json": (w.meaning for w in (*load_terms(), *load_symbols().values())),
        "app/catalog/glossary.json words": (w.word for w in load_terms() if "_" not in w.word),
        "app/catalog/keys.json": (text for key in load_keys() for text in (key.loses, key.replaced_by)),
        "app/domain/parallel/strategy.py": (strategy.label for strategy in STRATEGIES),
        "app/domain/parallel names": (*(c.note for c in COUNTERPARTS), *(r.note for r in (*KEYS, *CALLS)), *(s.note for s in SHARDINGS)),
        "app/catalog/accuracy.json": (s["title"] for s in document("accuracy")["sections"]),
    }
    for place, texts in groups.items():
        yield from ((text, place) for text in dict.fromkeys(texts) if text and not is_neutral(text))


def _of_words() -> Iterator[Message]:
    for line in WORDS.read_text(encoding="utf-8").splitlines():
        if line:
            yield line, "locale/words.txt"


if __name__ == "__main__":
    sys.exit(main())
