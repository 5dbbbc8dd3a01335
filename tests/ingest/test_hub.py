"""Fetching a config.json: one address, small answers, and words for everything that goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from app.domain.errors import InvalidRequestError, UnavailableError
from app.ingest.hub import MAX_BYTES, MAX_DEPTH, Hub
from app.services.plan import answer
from app.services.request import PlanRequest
from tests import CONFIGS

CASE = json.loads((CONFIGS / "Qwen__Qwen3-32B.json").read_text())
Handler = Callable[[httpx.Request], httpx.Response]


def hub_with(handler: Handler) -> Hub:
    """A hub that a function plays."""
    return Hub("https://hub.test", timeout_s=1, transport=httpx.MockTransport(handler))


def answering(status: int = 200, **content: object) -> Handler:
    """A hub that always answers the same."""
    return lambda _: httpx.Response(status, **content)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("revision", "path"), [(None, "/org/name/resolve/main/config.json"), ("refs/pr/1", "/org/name/resolve/refs%2Fpr%2F1/config.json")]
)
def test_the_config_of_a_revision_is_asked_for(revision: str | None, path: str) -> None:
    """Main where none is named; a slash of the revision is not one of the address."""
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path.decode())
        return httpx.Response(200, json={"model_type": "llama"})

    assert hub_with(handler).config("org/name", revision) == {"model_type": "llama"}
    assert asked == [path]


def test_a_renamed_repository_is_followed() -> None:
    """The hub redirects old names to new ones."""

    def handler(request: httpx.Request) -> httpx.Response:
        old = request.url.path.startswith("/old/")
        return httpx.Response(307, headers={"location": "/new/name/config.json"}) if old else httpx.Response(200, json={"a": 1})

    assert hub_with(handler).config("old/name") == {"a": 1}


@pytest.mark.parametrize("revision", [None, "v1.0"])
def test_a_fetched_model_is_counted_and_planned(revision: str | None) -> None:
    """The answer has the exact count, and its script loads the repository; that it does so without the revision is said."""
    body = {
        "model": {"hf_id": "Qwen/Qwen3-32B", "revision": revision},
        "training": {"seq_len": 4096},
        "cluster": {"pools": [{"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": 4, "host_memory_gib": 2048}]},
    }
    plan = answer(PlanRequest.model_validate(body), hub_with(answering(json=CASE["config"]))).document()
    assert plan["model"]["name"] == "Qwen/Qwen3-32B"
    assert plan["model"]["total_params"] == CASE["true_params"]
    assert any(w["code"] == "revision_not_in_script" for w in plan["warnings"]) is (revision is not None)
    assert "Qwen/Qwen3-32B" in next(text for name, text in plan["files"].items() if name.endswith("_train.py"))


@pytest.mark.parametrize("name", ["name", "org/", "../etc", "org/../x", "org/name/x", "org/na me", "https://x/y", "org/name?x", "örg/name"])
def test_what_is_no_repository_is_never_asked_for(name: str) -> None:
    """The complaint is at hf_id and the hub hears nothing."""

    def handler(request: httpx.Request) -> httpx.Response:
        raise AssertionError(request.url)

    with pytest.raises(InvalidRequestError) as caught:
        hub_with(handler).config(name)
    assert caught.value.errors[0].loc == ("model", "hf_id")


@pytest.mark.parametrize("revision", ["", "../x", "a/../b", "a b", "a?b", "x" * 101])
def test_what_is_no_revision_is_refused(revision: str) -> None:
    """The complaint is at revision."""
    with pytest.raises(InvalidRequestError) as caught:
        hub_with(answering(json={})).config("org/name", revision)
    assert caught.value.errors[0].loc == ("model", "revision")


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (answering(404), "no public config.json"),
        (answering(401), "no public config.json"),
        (answering(text="<html>"), "not a JSON object"),
        (answering(json=[1]), "not a JSON object"),
        (answering(content=b'{"a":' * MAX_DEPTH + b"{}" + b"}" * MAX_DEPTH), "usable depth"),
        (answering(content=b'{"a": "' + b"x" * MAX_BYTES + b'"}'), "larger than"),
    ],
)
def test_what_is_no_config_is_refused_with_the_way_out(handler: Handler, words: str) -> None:
    """Gated, missing, broken, hostile: paste the file instead."""
    with pytest.raises(InvalidRequestError, match=words) as caught:
        hub_with(handler).config("org/name")
    assert "hf_config" in caught.value.errors[0].hint


def _breaks(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectTimeout("slow", request=request)


@pytest.mark.parametrize("handler", [_breaks, answering(500), answering(429), answering(307, headers={"location": "/org/name"})])
def test_a_hub_that_does_not_answer_is_unavailable(handler: Handler) -> None:
    """Not the client's fault; the way out is said all the same."""
    with pytest.raises(UnavailableError, match="hf_config"):
        hub_with(handler).config("org/name")
