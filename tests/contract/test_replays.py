"""A save that is sent again: it costs no search, and many at the same moment make one plan."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.web import api, pages
from tests.faults.service import BODY
from tests.web.test_pages import BASE, HTML


class Counted:
    """Counts how often plans are made."""

    def __init__(self, plain: Any) -> None:
        self.plain, self.made = plain, 0

    def __call__(self, *given: Any) -> Any:
        self.made += 1
        return self.plain(*given)


@pytest.mark.parametrize("by", ["api", "form"])
def test_a_replay_computes_nothing(client: TestClient, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """The plan of the first try is looked for before anything is searched; another request under its key neither."""
    module: Any = {"api": api, "form": pages}[by]
    counted = Counted(module.answer)
    monkeypatch.setattr(module, "answer", counted)

    def save(name: str) -> Any:
        if by == "form":
            return client.post("/save", data=BASE | {"name": name, "key": "once"}, headers=HTML)
        return client.post("/plans", json=BODY | {"name": name}, headers={"idempotency-key": "once"})

    answers = [save("a"), save("a"), save("a"), save("b")]
    assert [answer.status_code for answer in answers] == [201, 200, 200, 409]
    assert len({answer.headers["location"] for answer in answers[:3]}) == 1
    assert counted.made == 1


def test_retries_at_the_same_moment_make_one_plan(client: TestClient) -> None:
    """Each may have to plan, as none is there yet; one is kept, and all get that."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.post("/plans", json=BODY, headers={"idempotency-key": "same"}), range(16)))
    assert {answer.status_code for answer in answers} == {200, 201}
    assert [answer.status_code for answer in answers].count(201) == 1
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(client.get("/plans").json()["items"]) == 1
