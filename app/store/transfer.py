"""Every saved plan as lines of JSON, and back: the same rows on either database.

Sweeps are no part of it: they are kept for some days only, and made again by whoever has their requests.

A file is a header, a line for each plan, each idempotency key and each measurement, and a footer that counts them, without which it
is cut short. The footer names no table that has no rows but the first two, so that a version before measurements reads it too.
Hashes of edit tokens are in it, the tokens are not: they go on deleting the plans they were given for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import JSON, BigInteger, Boolean, Column, Double, String, Table, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.domain.errors import ConflictError, InvalidRequestError
from app.store.repository import search_text
from app.store.tables import Base, IdempotencyRow, MeasurementRow, PlanRow, UtcDateTime

FORMAT, VERSION = "shardplan-export", 1
_DERIVED = "search_text"
_TABLES: dict[str, Table] = {
    row.__tablename__: Base.metadata.tables[row.__tablename__] for row in (PlanRow, IdempotencyRow, MeasurementRow)
}  # plans before what refers to them
_ALWAYS_COUNTED = ("plans", "idempotency")
_NUMBERS: tuple[tuple[type[Any], type[Any] | tuple[type[Any], ...], str], ...] = (
    (Boolean, bool, "neither true nor false"), (BigInteger, int, "no whole number"), (Double, (int, float), "no number"),
)  # fmt: skip
_BATCH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """How many rows of each table an import added, and how many were there already."""

    added: Mapping[str, int]
    present: Mapping[str, int]


def export_lines(session: Session) -> Iterator[bytes]:
    """Lines of an export, each with its line end; the transaction sees one moment of the database.

    Yields:
        The header, plans from the oldest, idempotency keys, measurements, the footer.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
    yield _line({"format": FORMAT, "version": VERSION})
    counts = {}
    for name, table in _TABLES.items():
        counts[name] = 0
        query = select(*_columns(table)).order_by(table.c.created_at, *table.primary_key)
        for row in session.execute(query.execution_options(yield_per=_BATCH)):
            counts[name] += 1
            yield _line({"table": str(name)} | {str(key): value for key, value in row._mapping.items()})
    yield _line({"end": {name: count for name, count in counts.items() if count or name in _ALWAYS_COUNTED}})


def import_lines(session: Session, lines: Iterable[bytes]) -> Imported:
    """Add the rows of an export that are not there yet, in the caller's transaction.

    Raises:
        InvalidRequestError: a line is not of an export, or the last is missing; it says which.
        ConflictError: a plan or key is there already with other contents.
    """
    numbered = enumerate(lines, 1)
    _check_header(next(numbered, (1, b""))[1])
    added, present = dict.fromkeys(_TABLES, 0), dict.fromkeys(_TABLES, 0)
    ended = False
    for number, line in numbered:
        if not line.strip():
            continue
        if ended:
            raise _invalid(number, "there is more after the end")
        found = _parsed(number, line)
        if "end" in found:
            total = {name: added[name] + present[name] for name in _TABLES}
            if not isinstance(found["end"], dict) or dict.fromkeys(_TABLES, 0) | found["end"] != total:
                raise _invalid(number, f"the end counts {found['end']}, but {total} came before it")
            ended = True
            continue
        name, values = _values(number, found)
        (added if _add(session, number, _TABLES[name], values) else present)[name] += 1
    if not ended:
        raise InvalidRequestError("the file has no end: it was cut short, so nothing of it is imported")
    return Imported(added=added, present=present)


def _add(session: Session, number: int, table: Table, values: dict[str, Any]) -> bool:
    """Insert a row; False where the same is there."""
    (key,) = table.primary_key
    there = session.execute(select(*_columns(table)).where(key == values[key.name])).first()
    if there is not None:
        if dict(there._mapping) == values:
            return False
        raise ConflictError(
            f"line {number}: {table.name} has {values[key.name][:40]!r} already, with other contents; "
            "nothing is imported, and nothing is replaced"
        )
    extra = {_DERIVED: search_text(values["name"], values["model_name"], values["gpu_name"])} if _DERIVED in table.c else {}
    try:
        session.execute(insert(table).values(**values, **extra))
    except IntegrityError as error:
        raise _invalid(number, f"{table.name} does not take this row: {str(error.orig).splitlines()[0]}") from error
    return True


def _columns(table: Table) -> list[Column[Any]]:
    """What is exported: everything that does not follow from the rest."""
    return [column for column in table.columns if column.name != _DERIVED]


def _line(record: Mapping[str, Any]) -> bytes:
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def _check_header(line: bytes) -> None:
    found = _parsed(1, line)
    if found.get("format") != FORMAT:
        raise _invalid(1, "this is not an export of Shardplan")
    if found.get("version") != VERSION:
        raise _invalid(1, f"this export has version {found.get('version')!r}; this program reads {VERSION}")


def _parsed(number: int, line: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _invalid(number, f"this is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise _invalid(number, "this is not an object")
    return found


def _values(number: int, found: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Table and columns of a line, of the right kinds and lengths, since SQLite would store anything."""
    name = found.pop("table", None)
    table = _TABLES.get(name) if isinstance(name, str) else None
    if name is None or table is None:
        raise _invalid(number, f"there is no table {name!r}")
    columns = {column.name: column for column in _columns(table)}
    if set(found) != set(columns):
        raise _invalid(number, f"these keys are missing or unknown: {', '.join(sorted(set(found) ^ set(columns)))}")
    return name, {key: _value(number, column, found[key]) for key, column in columns.items()}


def _value(number: int, column: Column[Any], value: Any) -> Any:
    if value is None and column.nullable:
        return None
    if isinstance(column.type, UtcDateTime):
        try:
            moment = datetime.fromisoformat(value)
        except (TypeError, ValueError) as error:
            raise _invalid(number, f"{column.name} is no time") from error
        if moment.tzinfo is None:
            raise _invalid(number, f"{column.name} has no time zone")
        return moment
    if isinstance(column.type, JSON):
        if not isinstance(value, dict):
            raise _invalid(number, f"{column.name} is no object")
        return value
    for kind, taken, wrong in _NUMBERS:
        if isinstance(column.type, kind):
            if not isinstance(value, taken) or (isinstance(value, bool) and kind is not Boolean):
                raise _invalid(number, f"{column.name} is {wrong}")
            return value
    if not isinstance(value, str) or "\0" in value:
        raise _invalid(number, f"{column.name} is no text")
    longest = column.type.length if isinstance(column.type, String) else None
    if longest is not None and len(value) > longest:
        raise _invalid(number, f"{column.name} has {len(value):,} characters, more than {longest}")
    return value


def _invalid(number: int, message: str) -> InvalidRequestError:
    return InvalidRequestError.at("line", number, msg=f"line {number}: {message}")
