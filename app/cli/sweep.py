"""``shardplan sweep``: many requests from a file, planned on the cores of this machine or by a service; what was interrupted goes on."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from pathlib import Path
from typing import IO

import orjson
from pydantic import ValidationError
from tqdm import tqdm

from app import ENGINE_VERSION
from app.cli.base import EXIT_UNAVAILABLE, LINES, Parser, UsageError, add_against, client_of, read
from app.configured import hub_of
from app.domain.errors import InvalidRequestError
from app.services.digest import sha256
from app.services.sweeps.reading import SweepIn, SweepLimits, WantedSweep, WrongRequestsError, read_document, read_lines
from app.services.sweeps.rows import RowMaker, chunks_of
from app.services.sweeps.table import header, table
from app.settings import AppSettings
from app.web.validation import field_errors
from app.web.wrong_requests import wrong_requests

_EXIT_CODES = """exit codes:
  0   done; or cancelled, with --cancel
  3   not valid: the file or its requests; or the service refuses, or the sweep was cancelled
  64  the command line or a setting is wrong
  69  the service does not answer, or a process that plans died
  130 interrupted; the same command goes on"""


def add_sweep(sweep: Parser) -> None:
    """Add the options."""
    sweep.epilog, sweep.formatter_class = _EXIT_CODES, argparse.RawDescriptionHelpFormatter
    sweep.add_argument("spec", type=Path, help="JSON or YAML with requests or grid, or a .jsonl of requests; - reads standard input")
    sweep.add_argument("-o", "--output", type=Path, required=True, help="file to write: .csv, or JSON Lines under any other name")
    sweep.add_argument("--detail", choices=("figures", "plan"), help="totals of each plan, or each whole; figures unless the file says so")
    sweep.add_argument("--jobs", type=int, help=f"processes that plan here ({os.cpu_count() or 1})")
    add_against(sweep)
    sweep.add_argument("--cancel", action="store_true", help="end the sweep of this output that the service of --against still works on")
    sweep.set_defaults(run=_sweep)


def _sweep(given: argparse.Namespace) -> int:
    if given.against and given.jobs is not None:
        raise UsageError("--jobs is for planning here, and the service of --against plans; --against '' plans here")
    client = client_of(given)
    if client is not None:
        from app.cli.sweep_against import sweep_there

        with client:
            return sweep_there(given, client)
    if given.cancel:
        raise UsageError("--cancel ends a sweep of a service: give --against URL")
    return _sweep_here(given)


def _sweep_here(given: argparse.Namespace) -> int:
    wanted = _wanted(given.spec, given.detail)
    part = given.output.with_name(f"{given.output.name}.part")
    try:
        with _resumed(part, wanted) as file:
            _plan_rest(wanted, file, max(1, given.jobs or os.cpu_count() or 1))
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on where it was: {part} has what is done", file=sys.stderr)
        raise
    except BrokenProcessPool:
        print(f"a planning process died; the same command goes on where it was: {part} has what is done", file=sys.stderr)
        return EXIT_UNAVAILABLE
    failed = _put_in_place(part, given.output, wanted.axes)
    print(f"{len(wanted.requests):,} rows in {given.output}" + (f", {failed:,} of them with an error" if failed else ""), file=sys.stderr)
    return 0


def _wanted(spec: Path, detail: str | None) -> WantedSweep:
    """The sweep a file describes; raises ``InvalidRequestError``."""
    limits = SweepLimits(plans=SweepLimits().requests)  # here nobody else waits
    try:
        if spec.suffix in LINES:
            return read_lines(spec.read_bytes(), limits, detail="plan" if detail == "plan" else "figures")
        document = read(spec)
        return read_document(document | {"detail": detail} if detail and isinstance(document, dict) else document, limits)
    except ValidationError as error:
        raise InvalidRequestError("the sweep is not valid", field_errors(error.errors(), SweepIn)) from error
    except WrongRequestsError as error:
        raise wrong_requests(error) from error


class _Part:
    """Rows in a file that is not whole yet: a line that says of which sweep, then a line a row, those of a chunk together."""

    def __init__(self, file: IO[bytes], done: int) -> None:
        self._file, self.done = file, done

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, lines: Sequence[bytes]) -> None:
        """Write the rows of a chunk."""
        self._file.write(b"".join(line + b"\n" for line in lines))
        self._file.flush()


def _resumed(path: Path, wanted: WantedSweep) -> _Part:
    """The part that an earlier run left, without a line that it did not finish; else a new one.

    Raises:
        InvalidRequestError: it is of another sweep, or of another version of the engine.
    """
    digest = sha256(b"\n".join([ENGINE_VERSION.encode(), wanted.detail.encode(), orjson.dumps(wanted.axes), *wanted.requests]))
    first = orjson.dumps({"sweep": digest, "engine_version": ENGINE_VERSION}) + b"\n"
    if not path.exists():
        path.write_bytes(first)
    file = path.open("r+b")
    begun = file.readline()
    if begun != first:
        if begun.endswith(b"\n"):
            file.close()
            msg = f"{path} holds rows of another sweep, or of another version of Shardplan"
            raise InvalidRequestError(f"{msg}; remove it to begin anew")
        file.seek(0)
        file.write(first)
    end, done = file.tell(), 0
    for line in file:
        if not line.endswith(b"\n"):
            break
        end, done = end + len(line), done + 1
    file.seek(end)
    file.truncate()
    return _Part(file, done)


def _plan_rest(wanted: WantedSweep, part: _Part, jobs: int) -> None:
    """Plan what is not there yet, in order, with a bar where somebody looks."""
    rest = [(part.done + first, requests) for first, requests in chunks_of(wanted.requests[part.done :], wanted.detail)]
    work = [(first, requests, wanted.detail, wanted.axes) for first, requests in rest]
    with tqdm(total=len(wanted.requests), initial=part.done, unit="plan", disable=None, file=sys.stderr) as bar:
        for lines in _rows(work, min(jobs, max(1, len(work)))):
            part.add(lines)
            bar.update(len(lines))


_Work = tuple[int, Sequence[bytes], str, Sequence[str]]


def _rows(work: Sequence[_Work], jobs: int) -> Iterator[Sequence[bytes]]:
    """The rows of every chunk, in order."""
    if jobs == 1:
        _begin()
        yield from map(_rows_of, work)
        return
    pool = ProcessPoolExecutor(jobs, initializer=_begin, initargs=(os.getpid(),))
    try:
        yield from pool.map(_rows_of, work)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_maker = RowMaker()


def _begin(parent: int | None = None) -> None:
    """Open in this process what its rows need; it ends with its parent, however that ends."""
    _maker.hub = hub_of(AppSettings())
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(EXIT_UNAVAILABLE)


def _rows_of(work: _Work) -> Sequence[bytes]:
    first, requests, detail, axes = work
    rows = _maker.rows(requests, first, detail, axes)
    return () if rows is None else rows.lines


def _put_in_place(part: Path, output: Path, axes: Sequence[str]) -> int:
    """Turn the part into the file that was asked for, which is there whole or not at all; gives how many rows have an error."""
    whole, failed = output.with_name(f"{output.name}.whole"), 0

    def rows(lines: Iterable[bytes]) -> Iterator[bytes]:
        nonlocal failed
        for line in lines:
            failed += b'"error":{"code":' in line
            yield line

    with part.open("rb") as lines, closing(whole.open("wb")) as file:
        next(lines)
        if output.suffix == ".csv":
            file.write(header(axes))
            for line in rows(lines):
                file.write(table([line], axes))
        else:
            file.writelines(rows(lines))
    whole.replace(output)
    part.unlink()
    return failed
