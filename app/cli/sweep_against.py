"""``shardplan sweep --against``: a running service plans the requests; the rows are downloaded once all of them are there."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from tqdm import tqdm

from app.cli.base import LINES, read
from app.client import Client, ProblemError
from app.domain.errors import InvalidRequestError, ShardplanError, UnavailableError
from app.services.digest import sha256
from app.services.sweeps.reading import Detail
from app.web.schemas import SweepOut

_GONE, _BROKEN = 404, 500


class _Begun(BaseModel):
    """What is remembered of a sweep while it is not downloaded, in a file beside the output that its owner alone reads.

    Attributes:
        url: of the service; nothing of this goes anywhere else.
        digest: of what was asked.
        key: that it is made under, so that a second try finds the first.
        sweep_id, edit_token: from the answer; None where that was lost.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    digest: str
    key: str
    sweep_id: str | None = None
    edit_token: str | None = None


def sweep_there(given: argparse.Namespace, client: Client) -> int:
    """Have the service plan, wait, and download; or go on with what an earlier run began."""
    path, part = (given.output.with_name(f"{given.output.name}{end}") for end in (".part.json", ".part"))
    if given.cancel:
        return _cancel(client, path)
    if part.exists() and not path.exists():
        raise InvalidRequestError(f"{part} holds rows of a sweep that is planned here; --against '' goes on with it, or remove it")
    try:
        made = _made(given, client, path)
        print(f"{made.total:,} requests at {client.url}/sweeps/{made.id}", file=sys.stderr)
        ended = _waited_for(client, made)
        if ended.state == "done":
            _download(client, ended, part)
    except (KeyboardInterrupt, UnavailableError):
        _say_how_to_go_on(client, path)
        raise
    if ended.state == "cancelled":
        path.unlink()
        raise ShardplanError(f"the sweep was cancelled; {_kept_there(client, ended)}")
    part.replace(given.output)
    path.unlink()
    errors = f", {ended.failed:,} of them with an error" if ended.failed else ""
    print(f"{ended.done:,} rows in {given.output}{errors}", file=sys.stderr)
    return 0


def _made(given: argparse.Namespace, client: Client, path: Path) -> SweepOut:
    """The sweep of an earlier run, or a new one, which is remembered before it is asked for."""
    lines, document = _asked(given)
    detail: Detail = "plan" if given.detail == "plan" else "figures"
    digest = sha256(b"\n".join([detail.encode(), *lines]) if document is None else json.dumps(document, default=str).encode())
    begun = _remembered(path)
    if begun is not None and (begun.url, begun.digest) != (client.url, digest):
        if begun.sweep_id is not None:
            msg = f"{path} is of another sweep, {begun.url}/sweeps/{begun.sweep_id}"
            raise InvalidRequestError(f"{msg}; ask the same of the same service to go on with it, or remove the file to begin anew")
        begun = None
    if begun is not None and begun.sweep_id is not None:
        try:
            return client.get_sweep(begun.sweep_id)
        except ProblemError as error:
            if error.status != _GONE:
                raise
            print(f"sweep {begun.sweep_id} is not there any more; this begins anew", file=sys.stderr)
            begun = None
    begun = begun or _Begun(url=client.url, digest=digest, key=uuid.uuid4().hex)
    _remember(path, begun)
    try:
        if document is None:
            made = client.sweep_lines(lines, detail=detail, idempotency_key=begun.key)
        else:
            made = client.sweep_document(document, idempotency_key=begun.key)
    except (ProblemError, InvalidRequestError) as error:
        if not isinstance(error, ProblemError) or error.status < _BROKEN:
            path.unlink()  # there is none, and there will not be
        raise
    _remember(path, begun.model_copy(update={"sweep_id": made.id, "edit_token": made.edit_token}))
    return made


def _asked(given: argparse.Namespace) -> tuple[list[bytes], Mapping[str, Any] | None]:
    """Lines, or a document, as they are: the service's own version judges them."""
    if given.spec.suffix in LINES:
        return given.spec.read_bytes().split(b"\n"), None
    document = read(given.spec)
    if not isinstance(document, dict):
        raise InvalidRequestError(f"{given.spec} is no object with requests or grid")
    return [], document | {"detail": given.detail} if given.detail else document


def _waited_for(client: Client, made: SweepOut) -> SweepOut:
    """Wait, with a bar where somebody looks."""
    with tqdm(total=made.total, initial=made.done, unit="plan", miniters=0, disable=None, file=sys.stderr) as bar:
        return client.wait_for_sweep(made.id, lambda sweep: bar.update(sweep.done - bar.n))


def _download(client: Client, sweep: SweepOut, part: Path) -> None:
    """Write the rows into the part, and count them: an answer may break off without anybody on the way saying so."""
    table = part.name.endswith(".csv.part")
    with part.open("wb") as file:
        (client.sweep_csv if table else client.sweep_jsonl)(sweep.id, file)
    with part.open("rb") as file:
        found = sum(1 for _ in csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))) - 1 if table else sum(1 for _ in file)
    if found != sweep.done:
        raise UnavailableError(f"{client.url} gave {found:,} of {sweep.done:,} rows")


def _cancel(client: Client, path: Path) -> int:
    """Let the service do no more, and forget the sweep."""
    begun = _remembered(path)
    if begun is None:
        raise InvalidRequestError(f"{path} is not there, so no sweep is waited for")
    if begun.url != client.url:
        raise InvalidRequestError(f"{path} is of a sweep at {begun.url}; give --against {begun.url}")
    if begun.sweep_id is None or begun.edit_token is None:
        raise InvalidRequestError(
            f"the answer with its edit token was lost on its way, so it cannot be cancelled; remove {path} to forget it"
        )
    try:
        sweep = client.cancel_sweep(begun.sweep_id, begun.edit_token)
    except ProblemError as error:
        if error.status != _GONE:
            raise
        path.unlink()
        print(f"sweep {begun.sweep_id} is not there any more", file=sys.stderr)
        return 0
    if sweep.state == "done":
        print("the sweep was done already; the same command without --cancel downloads its rows", file=sys.stderr)
        return 0
    path.unlink()
    print(f"cancelled; {_kept_there(client, sweep)}", file=sys.stderr)
    return 0


def _kept_there(client: Client, sweep: SweepOut) -> str:
    until = f" until {sweep.expires_at:%Y-%m-%d %H:%M %Z}" if sweep.expires_at else ""
    return f"its {sweep.done:,} rows of {sweep.total:,} are at {client.url}/sweeps/{sweep.id}/results{until}"


def _say_how_to_go_on(client: Client, path: Path) -> None:
    begun = _remembered(path)
    if begun is None:
        return
    if begun.sweep_id is None:
        print(f"\nwhether the service has the sweep is not known; the same command goes on with it: {path} has its key", file=sys.stderr)
        return
    where = f"{client.url}/sweeps/{begun.sweep_id}"
    print(f"\nthis does not end the sweep, {where}; the same command waits for it again, with --cancel it ends", file=sys.stderr)


def _remembered(path: Path) -> _Begun | None:
    try:
        return _Begun.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise InvalidRequestError(f"{path} is not what this command writes there; remove it to begin anew") from error


def _remember(path: Path, begun: _Begun) -> None:
    """Replace the file as a whole; a temporary one is readable by its owner alone."""
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    with os.fdopen(number, "w", encoding="utf-8") as file:
        file.write(begun.model_dump_json())
    Path(name).replace(path)
