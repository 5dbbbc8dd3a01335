"""What is tried again, how long is waited, and what is never sent anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from email.utils import formatdate
from time import time

import httpx
import pytest

from app.client import AnswerError, Client, ProblemError, Retry, ServiceUnavailableError
from app.domain.errors import InvalidRequestError
from app.web.schemas import EXAMPLE_REQUEST

Answer = httpx.Response | Exception
URL = "https://plans.example/team"
LISTED = {"items": [], "next_cursor": None, "next": None}
BROKEN = httpx.ReadError("connection reset")
NOT_NOW = {"content-type": "application/problem+json"}


class Script:
    """Stands for the network: gives each answer in turn, the last for ever, and keeps what was sent and waited."""

    def __init__(self, *answers: Answer, tries: int = 4) -> None:
        self.answers, self.sent, self.waits = list(answers), [], []
        retry = Retry(tries=tries, sleep=self.waits.append)
        self.client = Client(URL, "the key", retry=retry, transport=httpx.MockTransport(self._answer))

    sent: list[httpx.Request]
    waits: list[float]

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def unavailable(status: int = 503, **headers: str) -> httpx.Response:
    return httpx.Response(status, headers={key.replace("_", "-"): value for key, value in headers.items()})


def listed() -> httpx.Response:
    return httpx.Response(200, json=LISTED)


@pytest.mark.parametrize(
    "answer", [unavailable(429), unavailable(502), unavailable(503), unavailable(504), BROKEN, httpx.ConnectError("no")]
)
def test_what_repeats_safely_is_tried_again(answer: Answer) -> None:
    """After longer and longer pauses, where the service names none."""
    script = Script(answer, answer, listed())
    assert list(script.client.plans()) == []
    assert len(script.sent) == 3
    assert 0.37 < script.waits[0] < 0.63
    assert 0.75 < script.waits[1] < 1.25


def test_tries_are_bounded() -> None:
    """The last failure is raised, without a wait after it."""
    script = Script(unavailable(503), tries=3)
    with pytest.raises(ServiceUnavailableError, match="503 Service Unavailable") as failed:
        list(script.client.plans())
    assert failed.value.status == 503
    assert (len(script.sent), len(script.waits)) == (3, 2)


@pytest.mark.parametrize(("said", "low", "high"), [("7", 7, 7), ("0", 0, 0), ("", 0.3, 0.7), ("soon", 0.3, 0.7)])
def test_retry_after_is_obeyed(said: str, low: float, high: float) -> None:
    """In seconds; what cannot be read counts as not said."""
    script = Script(unavailable(retry_after=said), listed())
    list(script.client.plans())
    assert low <= script.waits[0] <= high


def test_a_wait_may_be_told() -> None:
    """Why, and for how long, before it."""
    told: list[tuple[str, float]] = []
    answers = [unavailable(retry_after="7"), listed()]
    retry = Retry(sleep=lambda _: None, on_wait=lambda why, seconds: told.append((str(why), seconds)))
    list(Client(URL, retry=retry, transport=httpx.MockTransport(lambda _: answers.pop(0))).plans())
    assert told == [(f"{URL} answers 503 Service Unavailable", 7)]


def test_retry_after_may_be_a_time() -> None:
    """As HTTP allows; one in the past means at once."""
    script = Script(
        unavailable(retry_after=formatdate(time() + 30, usegmt=True)), unavailable(retry_after=formatdate(0, usegmt=True)), listed()
    )
    list(script.client.plans())
    assert 25 < script.waits[0] <= 30
    assert script.waits[1] == 0


def test_a_long_pause_is_not_waited_out() -> None:
    """A pipeline hears of it instead of hanging for an hour."""
    script = Script(unavailable(429, retry_after="3600"))
    with pytest.raises(ServiceUnavailableError) as failed:
        list(script.client.plans())
    assert failed.value.retry_after_s == 3600
    assert script.waits == []


def test_a_save_is_sent_again_under_its_own_key() -> None:
    """So that it is kept once; another call has another key."""
    script = Script(BROKEN, unavailable(503), httpx.Response(404))
    for _ in range(2):
        with pytest.raises(ProblemError):
            script.client.save(EXAMPLE_REQUEST, "name")
    keys = [request.headers["idempotency-key"] for request in script.sent]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert len({request.content for request in script.sent}) == 1
    assert json.loads(script.sent[0].content) == EXAMPLE_REQUEST | {"name": "name"}


@pytest.mark.parametrize(("answer", "sent"), [(BROKEN, 1), (unavailable(503), 1), (unavailable(429), 4), (httpx.ConnectError("no"), 4)])
def test_a_deletion_is_repeated_only_if_it_was_not_begun(answer: Answer, sent: int) -> None:
    """Where it may have happened, a second one would answer that there is no such plan."""
    script = Script(answer)
    with pytest.raises(ServiceUnavailableError):
        script.client.delete("plan", "token")
    assert len(script.sent) == sent


def test_refusals_are_not_repeated() -> None:
    """The same request gets the same answer."""
    script = Script(httpx.Response(409, json={"detail": "nothing fits", "title": "No"}, headers=NOT_NOW))
    with pytest.raises(ProblemError, match="nothing fits") as refused:
        script.client.plan(EXAMPLE_REQUEST)
    assert (refused.value.status, refused.value.title, len(script.sent)) == (409, "No", 1)


@pytest.mark.parametrize("target", ["https://elsewhere.example/team/plans", "http://plans.example/team/plans", "/login"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int, target: str) -> None:
    """The key and the model stay with the address they were given for; the error says where it would have gone."""
    script = Script(httpx.Response(status, headers={"location": target}), listed())
    with pytest.raises(AnswerError, match=target.replace(".", r"\.")) as refused:
        list(script.client.plans())
    assert [str(request.url.copy_with(query=None)) for request in script.sent] == [f"{URL}/plans"]
    assert "the key" not in str(refused.value)


def test_the_key_goes_along() -> None:
    """As a bearer token, with the client's name and version; and an address may have a prefix."""
    script = Script(listed())
    list(script.client.plans())
    (request,) = script.sent
    assert request.headers["authorization"] == "Bearer the key"
    assert request.headers["user-agent"].startswith("shardplan/")
    assert request.url.path == "/team/plans"


@pytest.mark.parametrize("key", ["two\nlines", "schlüssel", " padded"])
def test_a_key_no_header_can_carry_is_refused(key: str) -> None:
    """Without repeating it."""
    with pytest.raises(InvalidRequestError, match="api_key") as refused:
        Client(URL, key)
    assert key not in str(refused.value)


def test_a_password_in_the_address_is_not_shown() -> None:
    """Where a proxy wants one."""
    client = Client("https://user:secret@plans.example", retry=Retry(tries=1), transport=httpx.MockTransport(lambda _: unavailable()))
    with pytest.raises(ServiceUnavailableError) as failed:
        client.gpus()
    assert "secret" not in str(failed.value) + client.url


@pytest.mark.parametrize("ask", [lambda c: c.get("../catalog/gpus"), lambda c: c.file("a/b?c#d", "e f")])
def test_ids_stay_inside_their_part_of_the_path(ask: Callable[[Client], object]) -> None:
    """Whatever characters they have."""
    script = Script(httpx.Response(404))
    with pytest.raises(ProblemError):
        ask(script.client)
    path = script.sent[0].url.raw_path.partition(b"?")[0]
    assert path in (b"/team/plans/..%2Fcatalog%2Fgpus", b"/team/plans/a%2Fb%3Fc%23d/e%20f")


@pytest.mark.parametrize("plan_id", ["", ".", ".."])
def test_ids_that_name_nothing_are_refused(plan_id: str) -> None:
    """They would be another address."""
    script = Script(httpx.Response(404))
    with pytest.raises(InvalidRequestError, match="names nothing"):
        script.client.delete(plan_id, "token")
    assert script.sent == []


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>welcome</html>"),
        httpx.Response(200, json=[1]),
        httpx.Response(200, json={"items": "none"}),
        httpx.Response(404, text="<html>nginx</html>"),
        httpx.Response(500, content=b"{", headers=NOT_NOW),
        httpx.Response(400, json={"errors": [{"loc": 3}, 4, None], "detail": 7}, headers=NOT_NOW),
        httpx.Response(799),
    ],
)
def test_answers_of_something_else_are_said_to_be_that(answer: httpx.Response) -> None:
    """An error for people, with the address, whatever comes back."""
    script = Script(answer)
    with pytest.raises((AnswerError, ProblemError), match=URL):
        list(script.client.plans())


def test_what_a_newer_service_adds_is_kept() -> None:
    """In the page's items too."""
    item = {
        "id": "a", "name": "", "created_at": "2026-01-01T00:00:00Z", "engine_version": "9", "model_name": "m", "gpu_name": "g",
        "verdict": "fits", "links": {}, "owner": "somebody",
    }  # fmt: skip
    script = Script(httpx.Response(200, json=LISTED | {"items": [item], "also": 1}))
    (found,) = script.client.plans()
    assert found.model_dump()["owner"] == "somebody"
