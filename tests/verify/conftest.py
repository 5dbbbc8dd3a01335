"""Marks this folder, shares training runs, and writes down what was proven for docs/verified.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.emit.jobs import TINY_LLAMA, make_job
from tests.verify.harness import Step, finetune, run_ranks, train
from tests.verify.report import RECORD, Row, record

Trainer = Callable[..., list[Step]]
Finetuner = Callable[..., list[Step]]
FOLDER = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """``files(names, *libraries)`` on a module says which emitted files its tests prove, and on what."""
    config.addinivalue_line("markers", "files(names, *libraries): emitted files a test proves, and the libraries it runs them on")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs the verify extra."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.verify)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how each test went and how long it took, with the runs it was the first to need."""
    report = yield
    mark = item.get_closest_marker("files")
    if mark is not None and FOLDER in item.path.parents:
        known = ROWS.setdefault(item.nodeid, Row.of(item.nodeid, str(item.obj.__doc__), mark.args))  # type: ignore[attr-defined]
        known.add(report.outcome, report.duration)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep rows of tests that did not run this time, unless all of them were asked for."""
    whole = [Path(argument).resolve() for argument in session.config.args] == [FOLDER] and not session.config.option.keyword
    if ROWS:
        record(ROWS, RECORD, keep=not whole)


ROWS: dict[str, Row] = {}


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """``trained(ranks, **settings)``: the steps of a smoke test, run once for equal arguments."""
    known: dict[str, list[Step]] = {}

    def run(ranks: int, **changes: Any) -> list[Step]:
        key = repr((ranks, sorted(changes.items(), key=lambda item: item[0])))
        if key not in known:
            known[key] = train(make_job(**changes), tmp_path_factory.mktemp("run"), ranks=ranks)
        return known[key]

    return run


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``weights(**changes)``: a folder with a saved model of the tiny Llama's config, and tokens.bin to learn beside it."""
    known: dict[str, Path] = {}

    def make(**changes: Any) -> Path:
        key = repr(changes)
        if key not in known:
            folder = tmp_path_factory.mktemp("weights")
            (folder / "tiny.json").write_text(json.dumps({**TINY_LLAMA, **changes}), encoding="utf-8")
            (folder / "tokens.bin").write_bytes(b"".join((n * n % 251).to_bytes(2, "little") for n in range(64 * 41 + 1)))
            run_ranks(FOLDER / "make_model.py", folder, ranks=1, arguments=["tiny.json", str(folder)])
            known[key] = folder
        return known[key]

    return make


@pytest.fixture(scope="session")
def finetuned(tmp_path_factory: pytest.TempPathFactory, weights: Callable[..., Path]) -> Finetuner:
    """``finetuned(ranks, config={...}, **settings)``: five steps from saved weights, run once for equal arguments."""
    known: dict[str, list[Step]] = {}

    def run(ranks: int, config: dict[str, Any] | None = None, **changes: Any) -> list[Step]:
        key = repr((ranks, config, sorted(changes.items(), key=lambda item: item[0])))
        if key not in known:
            folder = tmp_path_factory.mktemp("finetuned")
            known[key] = finetune(make_job(**changes), folder, ranks=ranks, source=weights(**(config or {})))
        return known[key]

    return run
