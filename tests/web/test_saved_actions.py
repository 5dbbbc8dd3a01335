"""What can be done with a plan beside reading it: the report, deleting it from its page, and comparing an existing file."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient

from tests.web.test_pages import BASE, CONFIG, HOSTILE, HTML, JSON, get, safe

MINE = '{"train_batch_size": 64, "zero_optimization": {"stage": 1, "mine": true}}'


def save(client: TestClient, name: str = "kept", note: str = "a note") -> tuple[str, str]:
    """Address and edit token of a saved plan."""
    kept = client.post("/save", data=BASE | {"name": name, "note": note}, headers=HTML)
    token = re.search(r'id="token">([^<]+)<', kept.text)
    assert token
    return kept.headers["location"], token[1]


def test_the_report_has_everything(client: TestClient) -> None:
    """Each term with its formula and exact bytes, each file in full, each source with its address; its JSON is the plan."""
    where, _ = save(client)
    document = client.get(where, headers=JSON).json()
    page = safe(client.get(where + "/report", headers=HTML).text)
    best = document["recommended"]
    for term in best["memory"]["gpu"]["terms"]:
        assert f"{term['formula']} = {term['bytes']:,} bytes" in page.text
    for term in best["time"]["terms"] + best["communication"]["terms"]:
        assert term["formula"] in page.text
    for warning in document["warnings"]:
        assert warning["message"] in page.text
    for text in document["files"].values():
        assert text in page.text
    sources = {t["source"] for t in best["memory"]["gpu"]["terms"] + best["time"]["terms"]}
    for source in sources:
        assert source.partition(" <")[0] in page.text
        assert source.partition("<")[2].rstrip(">") in page.text
    assert "a note" in page.text
    cited = {str(attrs["href"])[1:] for _, attrs in page.tags if str(attrs.get("href", "")).startswith("#s-")}
    assert cited == {str(attrs["id"]) for _, attrs in page.tags if str(attrs.get("id", "")).startswith("s-")}
    assert client.get(where + "/report", headers=JSON).json() == document
    assert get(client, "/plans/none/report").status_code == 404


def test_a_plan_that_does_not_fit_has_a_report(client: TestClient) -> None:
    """Without files."""
    kept = client.post("/save", data=BASE | {"model": "llama-3.1-70b", "strategy": "zero1"}, headers=HTML)
    page = client.get(kept.headers["location"] + "/report", headers=HTML)
    assert page.status_code == 200
    assert "short by" in page.text
    assert "Appendix" not in page.text


def test_a_plan_is_deleted_with_its_token(client: TestClient) -> None:
    """Asking deletes nothing; another token is refused beside its field; the right one deletes and says what."""
    where, token = save(client, "to go")
    asked = safe(get(client, where + "/delete").text)
    for words in ("to go", "a note", "Llama-3.1-8B", "h100-sxm-80gb", "cannot be brought back"):
        assert words in asked.text
    for given, words in (("", "the edit token is missing"), ("wrong", "is not the plan's")):
        refused = client.post(where + "/delete", data={"token": given}, headers=HTML)
        tags = safe(refused.text)
        assert refused.status_code == 403
        assert refused.headers["cache-control"] == "no-store"
        assert tags.by_id("token")["value"] == given
        assert tags.by_id("token")["aria-invalid"] == "true"
        assert words in tags.text
    assert client.get(where, headers=JSON).status_code == 200
    gone = client.post(where + "/delete", data={"token": f" {token} "}, headers=HTML)
    assert gone.status_code == 200
    assert "The plan “to go” is deleted" in safe(gone.text).text
    assert client.get(where, headers=JSON).status_code == 404
    assert client.post(where + "/delete", data={"token": token}, headers=HTML).status_code == 404


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "cross-site"}, {"origin": "https://elsewhere.example"}])
def test_another_site_deletes_nothing(client: TestClient, headers: dict[str, str]) -> None:
    """Even with the token."""
    where, token = save(client)
    assert client.post(where + "/delete", data={"token": token}, headers=HTML | headers).status_code == 403
    assert client.get(where, headers=JSON).status_code == 200


def test_an_existing_file_is_compared_with_the_answer(client: TestClient) -> None:
    """By text or by file, as a page or as JSON."""
    page = client.post("/diff", data=BASE | {"framework": "deepspeed", "existing": MINE}, headers=HTML)
    text = safe(page.text).text
    assert page.status_code == 200
    assert "Keys only in yours: 1." in text
    fields = BASE | {"framework": "deepspeed"}
    document = client.post("/diff", data=fields, files={"existing_file": ("x.json", MINE.encode())}, headers=JSON).json()
    assert document["file"] == "ds_config.json"
    rows = {row["key"]: row for row in document["keys"]}
    assert rows["zero_optimization.mine"]["kind"] == "only yours"
    assert rows["zero_optimization.stage"]["yours"] == "1"
    assert rows["zero_optimization.stage"]["changes"]


def test_whoever_brings_a_deepspeed_file_gets_a_deepspeed_plan(client: TestClient) -> None:
    """Where the recommended plan runs on another framework, and that is said."""
    page = client.post("/diff", data=BASE | {"framework": "fsdp2", "existing": MINE}, headers=HTML)
    assert page.status_code == 200
    assert "this is the best plan that runs on DeepSpeed" in page.text


def test_an_existing_file_is_compared_with_a_saved_plan(client: TestClient) -> None:
    """With its own files, as they were saved; one it has not is refused with what it has."""
    where = client.post("/save", data=BASE | {"framework": "deepspeed"}, headers=HTML).headers["location"]
    assert "Values that differ" in client.post(where + "/diff", data={"existing": MINE}, headers=HTML).text
    other = client.post("/save", data=BASE | {"framework": "fsdp2"}, headers=HTML).headers["location"]
    refused = client.post(other + "/diff", data={"existing": MINE}, headers=HTML)
    assert refused.status_code == 422
    assert "the plan has none: it has" in safe(refused.text).text
    assert client.post("/plans/none/diff", data={"existing": MINE}, headers=HTML).status_code == 404


@pytest.mark.parametrize("text", ["", "[", "a: &x 1\nb: *x", *HOSTILE])
def test_what_cannot_be_compared_is_given_back(client: TestClient, text: str) -> None:
    """422 with the reason, the text kept, in a page and as a problem; the form of the plan is kept too."""
    fields = BASE | {"config": CONFIG % "mine", "existing": text}
    page = client.post("/diff", data=fields, headers=HTML)
    tags = safe(page.text)
    assert page.status_code == 422
    assert text in tags.text
    assert "_name_or_path" in tags.text
    problem = client.post("/diff", data=fields, headers=JSON)
    assert problem.status_code == 422
    assert problem.json()["errors"][0]["loc"] == ["existing"]
    assert client.post("/diff", data=BASE | {"seq_len": "x", "existing": MINE}, headers=JSON).status_code == 422
