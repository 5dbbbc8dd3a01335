"""Fetching a config.json: one address, small answers, the commit it is of, and words for everything that goes wrong."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli import main
from app.cli.base import EXIT_USAGE
from app.domain.errors import InvalidRequestError, UnavailableError
from app.ingest.hub import AT_ONCE, MAX_BYTES, MAX_DEPTH, WAITING, Hub, HubModel
from app.ingest.hub_errors import MissingExtraError
from app.services.plan import answer
from app.services.request import PlanRequest
from tests import CONFIGS
from tests.ingest.hub_server import COMMIT, Reply, StandIn, drips, leads_to, says, standing_in

CASE = json.loads((CONFIGS / "Qwen__Qwen3-32B.json").read_text())
FILE = f"/org/name/resolve/{COMMIT}/config.json"
INFO = "/api/models/org/name"


@pytest.fixture
def server() -> Iterator[StandIn]:
    """A hub on this machine that has every repository."""
    with standing_in(CASE["config"]) as server:
        yield server


@pytest.fixture
def hub(server: StandIn) -> Iterator[Hub]:
    """Set to that hub, as its operator would."""
    hub = Hub(server.url, timeout_s=5, may_be_private=True)
    yield hub
    hub.close()


@pytest.mark.parametrize(("revision", "asked"), [(None, "main"), ("v1.0", "v1.0"), ("refs/pr/1", "refs%2Fpr%2F1")])
def test_a_branch_is_resolved_and_the_file_read_at_its_commit(server: StandIn, hub: Hub, revision: str | None, asked: str) -> None:
    """Main where none is named; a slash of the revision is not one of the address; and the second time nothing is asked."""
    assert hub.model("org/name", revision) == HubModel(config=CASE["config"], commit=COMMIT)
    assert server.asked == [f"GET {INFO}/revision/{asked}", f"GET {FILE}"]
    hub.model("org/name", revision)
    assert len(server.asked) == 2


def test_a_commit_is_taken_as_it_is(server: StandIn, hub: Hub) -> None:
    """Nothing has to be resolved."""
    assert hub.model("org/name", COMMIT).commit == COMMIT
    assert server.asked == [f"GET {FILE}"]


def test_a_renamed_repository_and_a_content_network_are_followed(server: StandIn, hub: Hub) -> None:
    """The hub redirects old names to new ones and files to where they lie, as long as that is the hub itself."""
    server.others = {"/api/models/old/": leads_to(f"/api/models/org/name/revision/{COMMIT}"), "/old/": leads_to("/cache"),
                     "/cache": says(200, {"a": 1})}  # fmt: skip
    assert hub.model("old/name").config == {"a": 1}


def test_no_credentials_are_sent_and_nothing_is_written(server: StandIn, hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a token of the environment, nor a cookie, nor what the library says of the machine; and no cache is made."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    server.others = {f"{INFO}/revision/main": says(307, b"", {"location": f"{INFO}/x", "set-cookie": "a=b"})}
    hub.model("org/name")
    assert not [headers for headers in server.headers if {"authorization", "cookie"} & headers.keys()]
    assert {headers["user-agent"].partition("/")[0] for headers in server.headers} == {"shardplan"}
    assert "hf_secret" not in json.dumps(server.headers)
    assert not list(tmp_path.iterdir())


def test_proxies_of_the_environment_are_not_used(server: StandIn, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would resolve names itself, past our check."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert hub.model("org/name").commit == COMMIT


def test_a_fetched_model_is_planned_at_its_commit(hub: Hub) -> None:
    """The answer has the exact count and the commit, and every file that loads the model loads that commit."""
    body = {
        "model": {"hf_id": "Qwen/Qwen3-32B", "revision": "v1.0"},
        "training": {"seq_len": 4096},
        "cluster": {"pools": [{"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "nodes": 4, "host_memory_gib": 2048}]},
    }
    plan = answer(PlanRequest.model_validate(body), hub).document()
    assert plan["model"]["name"] == "Qwen/Qwen3-32B"
    assert plan["model"]["total_params"] == CASE["true_params"]
    assert (plan["model"]["hf_id"], plan["model"]["revision"]) == ("Qwen/Qwen3-32B", COMMIT)
    assert plan["request"]["model"]["revision"] == "v1.0"
    script = next(text for name, text in plan["files"].items() if name.endswith("_train.py"))
    assert f'REVISION = "{COMMIT}"' in script
    assert script.count("from_pretrained(args.model, revision=args.revision") == 3  # config, weights, tokenizer
    assert f'REVISION = "{COMMIT}"' in plan["dialects"]["hf_auto"]["training_args.py"]


def test_a_preset_has_no_commit(hub: Hub, server: StandIn) -> None:
    """Its files load the repository as it is, and nothing is fetched."""
    body = {
        "model": {"preset": "llama-3.1-8b"},
        "training": {"seq_len": 4096},
        "cluster": {"pools": [{"gpu": "h100-sxm-80gb", "gpus_per_node": 8}]},
    }
    plan = answer(PlanRequest.model_validate(body), hub).document()
    assert "revision" not in plan["model"]
    assert not any("REVISION" in text for text in plan["files"].values())
    assert server.asked == []


@pytest.mark.parametrize("name", ["name", "org/", "../etc", "org/../x", "org/name/x", "org/na me", "https://x/y", "org/name?x", "örg/name"])
def test_what_is_no_repository_is_never_asked_for(server: StandIn, hub: Hub, name: str) -> None:
    """The complaint is at hf_id and the hub hears nothing."""
    with pytest.raises(InvalidRequestError) as caught:
        hub.model(name)
    assert caught.value.errors[0].loc == ("model", "hf_id")
    assert server.asked == []


@pytest.mark.parametrize("name", ["org/a--b", "org/name.git"])
def test_names_the_library_refuses_are_refused_in_our_words(server: StandIn, hub: Hub, name: str) -> None:
    """Its rules are stricter than ours."""
    with pytest.raises(InvalidRequestError, match="name of no repository"):
        hub.model(name)
    assert server.asked == []


@pytest.mark.parametrize("revision", ["", "../x", "a/../b", "a b", "a?b", "x" * 101])
def test_what_is_no_revision_is_refused(hub: Hub, revision: str) -> None:
    """The complaint is at revision."""
    with pytest.raises(InvalidRequestError) as caught:
        hub.model("org/name", revision)
    assert caught.value.errors[0].loc == ("model", "revision")


@pytest.mark.parametrize(
    ("path", "reply", "words"),
    [
        (INFO, says(404, {}, {"x-error-code": "RepoNotFound"}), "no public model"),
        (INFO, says(401, {}), "it is private"),
        (INFO, says(404, {}, {"x-error-code": "RevisionNotFound"}), "no revision main"),
        (INFO, says(400, {}), "it answers 400"),
        (FILE, says(403, {}, {"x-error-code": "GatedRepo"}), "gated"),
        (FILE, says(404, {}, {"x-error-code": "EntryNotFound"}), "no config.json"),
        (FILE, says(204), "it answers 204"),
        (FILE, says(200, b"<html>"), "not a JSON object"),
        (FILE, says(200, [1]), "not a JSON object"),
        (FILE, says(200, b'{"a":' * MAX_DEPTH + b"{}" + b"}" * MAX_DEPTH), "usable depth"),
        (FILE, says(200, b'{"a": "' + b"x" * MAX_BYTES + b'"}'), "larger than"),
    ],
)
def test_what_is_no_config_is_refused_with_the_way_out(server: StandIn, hub: Hub, path: str, reply: Reply, words: str) -> None:
    """Gated, missing, broken, hostile: paste the file instead."""
    server.others = {path: reply}
    with pytest.raises(InvalidRequestError, match=words) as caught:
        hub.model("org/name")
    assert "hf_config" in caught.value.errors[0].hint


@pytest.mark.parametrize(
    ("path", "reply", "words"),
    [
        (INFO, says(500), "answers 500"),
        (FILE, says(503), "answers 503"),
        (INFO, says(429), "answers 429"),
        (INFO, says(200, [1]), "describes no repository"),
        (INFO, says(200, b"{"), "describes no repository"),
        (INFO, says(200, {"id": "org/name", "sha": "../../x"}), "names no commit"),
        (INFO, says(404, [1]), "describes no repository"),
        (INFO, says(200, b"x" * (9 * 2**20)), "larger than any"),
        (FILE, says(200, b"\x1f\x8b", {"content-encoding": "gzip"}), "compressed"),
        (FILE, leads_to(FILE), "more than 3 times"),
        (FILE, leads_to("http://127.0.0.1:9/x"), "not https"),
        (FILE, leads_to("http://localhost:9/x"), "not https"),
        (FILE, leads_to("https://127.0.0.1:9/x"), "no public address"),
        (FILE, leads_to("https://localhost/x"), "no public address"),
        (FILE, leads_to("https://169.254.169.254/latest/meta-data"), "no public address"),
        (FILE, leads_to("https://[::ffff:10.0.0.1]/"), "no public address"),
        (FILE, leads_to("file:///etc/passwd"), "does not answer|not https"),
    ],
)
def test_a_hub_that_does_not_answer_as_one_is_unavailable(server: StandIn, hub: Hub, path: str, reply: Reply, words: str) -> None:
    """Not the client's fault; the way out is said all the same."""
    server.others = {path: reply}
    with pytest.raises(UnavailableError, match=words) as caught:
        hub.model("org/name")
    assert "hf_config" in caught.value.detail


@pytest.mark.parametrize("head", [False, True])
def test_a_slow_drip_ends_at_the_deadline(server: StandIn, head: bool) -> None:
    """Every byte comes in time and the answer never ends: the deadline is of the whole fetch, and its thread is free after it."""
    server.others = {INFO: drips(0.02, head=head)}
    hub, since = Hub(server.url, timeout_s=0.15, may_be_private=True), time.monotonic()
    for _ in range(2 * AT_ONCE):
        with pytest.raises(UnavailableError, match="did not answer"):
            hub.model("org/name")
    assert time.monotonic() - since < 2 * AT_ONCE * 0.15 + 2
    server.others = {}
    assert hub.model("org/name").commit == COMMIT
    hub.close()


def test_a_hub_nobody_listens_at_is_unavailable(server: StandIn) -> None:
    """Said at once."""
    hub = Hub("http://127.0.0.1:9", timeout_s=5, may_be_private=True)
    with pytest.raises(UnavailableError, match="does not answer"):
        hub.model("org/name")
    hub.close()


def test_a_private_hub_has_to_be_named_by_the_operator(server: StandIn) -> None:
    """The default name is not followed into a private network."""
    hub = Hub(server.url.replace("http:", "https:"), timeout_s=5)
    with pytest.raises(UnavailableError, match="no public address"):
        hub.model("org/name")
    assert server.asked == []
    hub.close()


def test_slow_fetches_leave_room_for_others(server: StandIn) -> None:
    """So many run, so many wait, and the next is told at once; afterwards all is as before."""
    go = threading.Event()

    def waits(request: object) -> None:
        go.wait(10)

    server.others = {INFO: waits}
    hub = Hub(server.url, timeout_s=10, may_be_private=True)
    said: list[str] = []

    def ask() -> None:
        try:
            hub.model("org/name")
        except UnavailableError as error:
            said.append(error.detail)

    threads = [threading.Thread(target=ask) for _ in range(AT_ONCE + WAITING + 1)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 5
    while time.monotonic() < until and (len(server.asked) < AT_ONCE or not said):
        time.sleep(0.01)
    assert [("for no more" in words) for words in said] == [True]
    assert len(server.asked) == AT_ONCE
    go.set()
    for thread in threads:
        thread.join()
    server.others = {}
    assert hub.model("org/name").commit == COMMIT
    hub.close()


def test_a_missing_extra_is_said_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fetching is on and the package is not there."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules, "app.ingest.hub_library", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'shardplan\[hub\]'"):
        Hub("https://hub.test", timeout_s=1)


def test_the_command_says_so_as_a_wrong_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is planned."""
    monkeypatch.setenv("SHARDPLAN_FETCH_MODELS", "true")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules, "app.ingest.hub_library", raising=False)
    spec = tmp_path / "request.json"
    spec.write_text('{"model": {"hf_id": "org/name"}, "training": {"seq_len": 16}, "cluster": {"pools": [{"gpu": "h100-sxm-80gb"}]}}')
    assert main(["plan", str(spec)]) == EXIT_USAGE
    assert "pip install 'shardplan[hub]'" in capsys.readouterr().err
