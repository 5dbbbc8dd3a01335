"""Sweeps through the client: against a running service, and against answers that break off or never come."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from app.client import AnswerError, Client, PlanRequest, ProblemError, Retry, ServiceUnavailableError, SweepNotDoneError
from app.domain.errors import InvalidRequestError
from app.services.sweeps.reading import GridIn
from app.web.schemas import SweepOut
from tests.faults.service import BODY
from tests.services.test_sweeps import SENSELESS, rows_of, wanted_of

LENGTHS = {"base": BODY, "axes": {"training.seq_len": [256, 512]}}
SWEEP = {
    "id": "s", "name": "", "created_at": "2026-01-01T00:00:00Z", "state": "running", "detail": "figures", "axes": [], "total": 2, "done": 1,
    "failed": 0, "verdicts": {"fits": 1}, "engine_versions": ["1"], "expires_at": None, "links": {}, "owner": "somebody",
}  # fmt: skip
AWAY = httpx.Response(503)


def done(client: Client, made: SweepOut) -> SweepOut:
    return client.wait_for_sweep(made.id, timeout_s=60, poll_s=0.1)


def scripted(*answers: httpx.Response | Exception, waits: list[float] | None = None, tries: int = 1) -> Client:
    """A client of a network that gives each answer in turn, the last for ever."""
    left = list(answers)

    def answer(_: httpx.Request) -> httpx.Response:
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    retry = Retry(tries=tries, sleep=(waits if waits is not None else []).append)
    return Client("https://plans.example", retry=retry, transport=httpx.MockTransport(answer))


def test_a_sweep_from_its_making_to_its_end(remote: Client) -> None:
    """Made once under its key, waited for, read in both formats, left as it is by a cancel, and deleted with its token only."""
    made = remote.sweep([BODY, PlanRequest.model_validate(SENSELESS)], name="two", idempotency_key="sweep 1")
    again = remote.sweep([BODY, SENSELESS], name="two", idempotency_key="sweep 1")
    assert (made.name, made.total, made.detail, again.id, again.edit_token) == ("two", 2, "figures", made.id, None)
    assert made.edit_token
    seen: list[int] = []
    ended = remote.wait_for_sweep(made.id, lambda sweep: seen.append(sweep.done), timeout_s=60)
    assert (ended.state, ended.done, ended.failed, seen[-1]) == ("done", 2, 1, 2)
    rows = rows_of(wanted_of(BODY, SENSELESS))
    assert list(remote.sweep_rows(made.id)) == rows
    lines, table = io.BytesIO(), io.BytesIO()
    remote.sweep_jsonl(made.id, lines)
    assert [json.loads(line) for line in lines.getvalue().splitlines()] == rows
    remote.sweep_csv(made.id, table)
    cells = list(csv.DictReader(io.StringIO(table.getvalue().decode())))
    assert [cell["verdict"] for cell in cells] == [row.get("verdict", "") for row in rows]
    with pytest.raises(ProblemError) as refused:
        remote.cancel_sweep(made.id, "another token")
    assert refused.value.status == 403
    assert remote.cancel_sweep(made.id, made.edit_token).state == "done"
    remote.delete_sweep(made.id, made.edit_token)
    for gone in (lambda: remote.get_sweep(made.id), lambda: next(remote.sweep_rows(made.id))):
        with pytest.raises(ProblemError) as missing:
            gone()
        assert missing.value.status == 404


@pytest.mark.parametrize(
    "grid",
    [LENGTHS, LENGTHS | {"base": PlanRequest.model_validate(BODY)}, GridIn.model_validate(LENGTHS)],
    ids=["mapping", "request", "model"],
)
def test_a_grid(remote: Client, grid: Any) -> None:
    """As a mapping, with a base of the request's own type, and as the service's own type."""
    made = remote.sweep(grid=grid)
    assert made.axes == ["training.seq_len"]
    assert done(remote, made).verdicts["fits"] == 2
    assert [row["axes"] for row in remote.sweep_rows(made.id)] == [{"training.seq_len": 256}, {"training.seq_len": 512}]


def test_lines(remote: Client) -> None:
    """Text, bytes with any line end, and requests; with a name and whole plans where those are asked for."""
    text = json.dumps(BODY)
    made = remote.sweep_lines([text, f"{text}\r\n".encode(), BODY, PlanRequest.model_validate(BODY)], name="lines", detail="plan")
    assert (made.name, made.total, made.detail) == ("lines", 4, "plan")
    assert done(remote, made).state == "done"
    assert all("ddp_train.py" in row["files"] for row in remote.sweep_rows(made.id))


def test_each_call_makes_one(remote: Client) -> None:
    """The key that the client makes is one call's."""
    assert remote.sweep_lines([BODY]).id != remote.sweep_lines([BODY]).id != remote.sweep([BODY]).id


def test_mistakes_are_named(remote: Client) -> None:
    """By the service, with the place of the request; what cannot be sent by the client."""
    with pytest.raises(ProblemError) as refused:
        remote.sweep([BODY, BODY | {"trainig": {}}])
    assert refused.value.errors[0].loc == ("requests", 1, "trainig")
    with pytest.raises(ProblemError, match="either requests, a list, or grid"):
        remote.sweep()
    with pytest.raises(InvalidRequestError, match="cannot be written as JSON"):
        remote.sweep_lines([BODY | {"headroom_frac": float("nan")}])
    with pytest.raises(InvalidRequestError, match="give its lines"):
        remote.sweep_lines(json.dumps(BODY))
    with pytest.raises(ProblemError) as missing:
        remote.wait_for_sweep("none")
    assert missing.value.status == 404


def test_a_wait_ends(remote: Client) -> None:
    """With how far the sweep is, which goes on and can be cancelled."""
    made = remote.sweep([BODY] * 3000)
    with pytest.raises(SweepNotDoneError, match=r"not done yet: .* of 3,000 rows") as late:
        remote.wait_for_sweep(made.id, timeout_s=0)
    assert late.value.sweep.id == made.id
    assert made.edit_token
    assert remote.cancel_sweep(made.id, made.edit_token).state == "cancelled"
    assert remote.wait_for_sweep(made.id).state == "cancelled"


def test_a_wait_outlives_a_service_that_is_started_anew() -> None:
    """Pauses grow up to the longest, and last as long as the service says."""
    waits: list[float] = []
    answers = [httpx.Response(200, json=SWEEP)] * 3 + [httpx.ConnectError("no"), httpx.Response(503, headers={"retry-after": "7"})]
    ended = scripted(*answers, httpx.Response(200, json=SWEEP | {"state": "done"}), waits=waits).wait_for_sweep("s", poll_s=0.4)
    assert ended.model_dump()["owner"] == "somebody"
    assert waits == pytest.approx([0.2, 0.3, 0.4, 0.4, 7])


@pytest.mark.parametrize("timeout_s", [None, 30])
def test_a_wait_for_nobody_ends_too(timeout_s: float | None) -> None:
    """A service that wants to be left alone for longer than is waited, and one that has gone."""
    waits: list[float] = []
    with pytest.raises(ServiceUnavailableError):
        scripted(httpx.Response(503, headers={"retry-after": "301"}), waits=waits).wait_for_sweep("s", timeout_s=timeout_s)
    assert waits == []


def test_making_is_sent_again_under_its_own_key() -> None:
    """As lines too, whose iterator can be read once."""
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return AWAY if len(sent) < 3 else httpx.Response(202, json=SWEEP)

    client = Client("https://plans.example", retry=Retry(sleep=lambda _: None), transport=httpx.MockTransport(answer))
    client.sweep_lines(iter([BODY, BODY]))
    assert len({request.headers["idempotency-key"] for request in sent}) == 1
    assert {request.content for request in sent} == {b"\n".join([json.dumps(BODY).encode()] * 2)}
    assert sent[0].headers["content-type"] == "application/jsonl"
    assert sent[0].url.params["detail"] == "figures"


def parts(*given: bytes, then: Exception | None = None) -> httpx.Response:
    def stream() -> Iterator[bytes]:
        yield from given
        if then is not None:
            raise then

    return httpx.Response(200, content=stream())


def test_rows_are_cut_where_the_service_cuts_them() -> None:
    """Wherever parts end; not at characters that Python takes for line ends."""
    text = '{"index":0,"summary":"a\u2028b\x85c"}\n{"index":1}\n'.encode()
    client = scripted(parts(*(text[n : n + 1] for n in range(len(text)))))
    assert list(client.sweep_rows("s")) == [{"index": 0, "summary": "a\u2028b\x85c"}, {"index": 1}]


def test_rows_that_break_off_are_said_to() -> None:
    """After those that came whole; nothing is asked again, since the rows before were given away already."""
    rows = scripted(parts(b'{"index":0}\n{"ind', then=httpx.RemoteProtocolError("incomplete chunked read")), tries=4).sweep_rows("s")
    assert next(rows) == {"index": 0}
    with pytest.raises(ServiceUnavailableError, match=r"plans\.example breaks off: incomplete chunked read"):
        next(rows)


def test_rows_are_asked_again_while_there_are_none() -> None:
    """As every other answer."""
    assert list(scripted(AWAY, httpx.ReadError("reset"), parts(b'{"index":0}\n'), tries=4).sweep_rows("s")) == [{"index": 0}]


@pytest.mark.parametrize("answer", [b"<html>", b"[1]\n", b'{"index":0}\n{"ind'])
def test_what_are_no_rows_is_said_to_be_that(answer: bytes) -> None:
    """An error for people, with the address."""
    with pytest.raises(AnswerError, match=r"plans\.example"):
        list(scripted(parts(answer)).sweep_rows("s"))


@pytest.mark.parametrize("read", [lambda c: sum(1 for _ in c.sweep_rows("s")), lambda c: c.sweep_csv("s", Void())])
def test_large_answers_take_little_memory(read: Callable[[Client], object]) -> None:
    """64 MB come by in less than 4."""
    line = b'{"index":0,"summary":"' + b"x" * 65_000 + b'"}\n'
    client = scripted(parts(*[line] * 1000))
    tracemalloc.start()
    try:
        read(client)
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()


class Void(io.RawIOBase):
    """Takes everything."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data)
