"""Saving plans: once per idempotency key even under concurrency, deleted by their token only, files as saved."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func, select

from app.domain.errors import ConflictError, InvalidRequestError, NotFoundError
from app.services.saved_plans import ForbiddenError, SavedPlans, gpu_names, key_of_client
from app.store.repository import PlanFilter
from app.store.session import Database
from app.store.tables import IdempotencyRow, PlanRow

REQUEST = {"model": {"preset": "llama-3.1-8b"}, "cluster": {"pools": [{"gpu": "h100-sxm-80gb", "nodes": 4}]}}
ANSWER = {
    "engine_version": "1.2.3",
    "verdict": "fits",
    "request": REQUEST | {"objective": "throughput"},
    "model": {"name": "Llama 3.1 8B"},
    "files": {"ds_config.json": "{}\n", "launch.sh": "#!/bin/sh\n"},
}


@pytest.fixture
def plans(database: Database) -> SavedPlans:
    return SavedPlans(database)


def rows(database: Database, table: type[Any] = PlanRow) -> int:
    with database.session() as session:
        return session.execute(select(func.count()).select_from(table)).scalar_one()


def test_save_and_read(plans: SavedPlans) -> None:
    """A saved plan keeps its documents; the token is told once and never again."""
    saved = plans.save(REQUEST, ANSWER, name="  first ", note="why")
    found = plans.get(saved.id)
    assert saved.edit_token is not None
    assert len(saved.edit_token) >= 43  # 256 bits in base64
    assert len(saved.id) == 22  # 128 bits in base64
    assert found.edit_token is None
    assert (found.request, found.answer) == (REQUEST, ANSWER)
    assert (found.name, found.note, found.model_name) == ("first", "why", "Llama 3.1 8B")
    assert (found.gpu_name, found.verdict, found.engine_version) == ("h100-sxm-80gb", "fits", "1.2.3")
    assert found.created_at == saved.created_at


def test_the_token_itself_is_never_stored(plans: SavedPlans, database: Database) -> None:
    """What lies in the database does not delete a plan."""
    saved = plans.save(REQUEST, ANSWER)
    with database.session() as session:
        stored = session.execute(select(PlanRow.edit_token_hash)).scalar_one()
    assert saved.edit_token is not None
    assert saved.edit_token not in stored
    with pytest.raises(ForbiddenError):
        plans.delete(saved.id, stored)


def test_a_saved_document_cannot_be_changed_through_the_one_that_was_given(plans: SavedPlans) -> None:
    """The record is a copy."""
    request: dict[str, Any] = {"cluster": {"pools": [{"gpu": "t4"}]}}
    saved = plans.save(request, ANSWER)
    request["cluster"]["pools"].clear()
    assert saved.request["cluster"]["pools"]


def test_the_same_key_and_request_save_once(plans: SavedPlans, database: Database) -> None:
    """A retry finds the plan of the first try, without its token."""
    first = plans.save(REQUEST, ANSWER, name="n", idempotency_key="key-1")
    again = plans.save(dict(reversed(REQUEST.items())), ANSWER, name="n", idempotency_key="key-1")
    assert (first.replayed, again.replayed) == (False, True)
    assert again.id == first.id
    assert again.edit_token is None
    assert rows(database) == 1


@pytest.mark.parametrize("other", [{"name": "other"}, {"note": "other"}, {"request": REQUEST | {"headroom_frac": 0.1}}])
def test_the_same_key_with_another_request_is_a_conflict(plans: SavedPlans, database: Database, other: dict[str, Any]) -> None:
    """A key stands for one request, name and note."""
    plans.save(REQUEST, ANSWER, idempotency_key="key-1")
    changed: dict[str, Any] = {"request": REQUEST, **other}
    with pytest.raises(ConflictError, match="another request"):
        plans.save(answer=ANSWER, idempotency_key="key-1", **changed)
    assert rows(database) == 1


def test_a_retry_is_found_before_anything_is_computed(plans: SavedPlans) -> None:
    """By the request alone; nothing is found for another key or without one, and the same conflicts are met."""
    first = plans.save(REQUEST, ANSWER, name="n", note=" x ", idempotency_key="key-1")
    found = plans.earlier(dict(reversed(REQUEST.items())), name=" n", note="x", idempotency_key="key-1")
    assert found is not None
    assert (found.id, found.replayed, found.edit_token) == (first.id, True, None)
    assert plans.earlier(REQUEST, name="n", note="x", idempotency_key="key-2") is None
    assert plans.earlier(REQUEST, name="n", note="x") is None
    with pytest.raises(ConflictError, match="another request"):
        plans.earlier(REQUEST, name="n", idempotency_key="key-1")
    with pytest.raises(InvalidRequestError):
        plans.earlier(REQUEST, idempotency_key="k" * 201)
    plans.delete(first.id, first.edit_token or "")
    assert plans.earlier(REQUEST, name="n", note="x", idempotency_key="key-1") is None


def test_keys_of_two_clients_are_two(plans: SavedPlans) -> None:
    """However long each is; without clients a key is kept as it came."""
    keys = [key_of_client(client, "k" * 200) for client in ("0123456789ab", "ba9876543210")]
    ids = {plans.save(REQUEST, ANSWER, idempotency_key=key).id for key in (*keys, *keys)}
    assert len(ids) == 2
    assert (key_of_client("", "k"), key_of_client("", None), key_of_client("a", None)) == ("k", None, None)
    for bad in ("", "k" * 201, "tab\t"):
        with pytest.raises(InvalidRequestError, match="Idempotency-Key must be"):
            key_of_client("0123456789ab", bad)


def test_concurrent_saves_of_one_key_make_one_plan(plans: SavedPlans, database: Database) -> None:
    """However many retries arrive at the same moment, one saves and all get its plan."""
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: plans.save(REQUEST, ANSWER, idempotency_key="key-1"), range(24)))
    assert len({plan.id for plan in found}) == 1
    assert sum(plan.edit_token is not None for plan in found) == 1
    assert (rows(database), rows(database, IdempotencyRow)) == (1, 1)


def test_concurrent_saves_of_different_keys_all_succeed(plans: SavedPlans, database: Database) -> None:
    """Writers wait for each other; none is lost."""
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: plans.save(REQUEST, ANSWER, idempotency_key=f"key-{n}"), range(24)))
    assert len({plan.id for plan in found}) == 24
    assert rows(database) == 24


def test_a_key_is_free_again_when_its_plan_is_deleted(plans: SavedPlans) -> None:
    """Nothing of a deleted plan stays behind."""
    first = plans.save(REQUEST, ANSWER, idempotency_key="key-1")
    plans.delete(first.id, first.edit_token or "")
    second = plans.save(REQUEST, ANSWER, idempotency_key="key-1")
    assert second.id != first.id
    assert not second.replayed


def test_delete_needs_the_token(plans: SavedPlans) -> None:
    """Another plan's token does not do, nor one that is no text."""
    saved, other = plans.save(REQUEST, ANSWER), plans.save(REQUEST, ANSWER)
    for token in (other.edit_token or "", "", "\ud800"):
        with pytest.raises(ForbiddenError):
            plans.delete(saved.id, token)
    plans.delete(saved.id, saved.edit_token or "")
    with pytest.raises(NotFoundError):
        plans.get(saved.id)
    with pytest.raises(NotFoundError):
        plans.delete(saved.id, saved.edit_token or "")


def test_list_pages(plans: SavedPlans) -> None:
    """The newest first; the cursor of the last page is None."""
    ids = [plans.save(REQUEST, ANSWER, name=f"run {n}").id for n in range(5)]
    first = plans.list(limit=3)
    second = plans.list(cursor=first.next_cursor, limit=3)
    assert [item.id for item in (*first.items, *second.items)] == ids[::-1]
    assert second.next_cursor is None
    assert [item.name for item in plans.list(PlanFilter(name="RUN 4")).items] == ["run 4"]
    for limit in (0, 101):
        with pytest.raises(InvalidRequestError, match="between 1 and 100"):
            plans.list(limit=limit)


def test_files(plans: SavedPlans) -> None:
    """A file is the text that was saved; one that is not there is answered with those that are."""
    saved = plans.save(REQUEST, ANSWER)
    artifact = plans.file(saved.id, "launch.sh")
    assert (artifact.text, artifact.media_type) == ("#!/bin/sh\n", "text/x-shellscript")
    with pytest.raises(NotFoundError, match=r"it has ds_config\.json, launch\.sh"):
        plans.file(saved.id, "fsdp2_train.py")
    bare = plans.save(REQUEST, ANSWER | {"files": {}, "verdict": "does_not_fit"})
    with pytest.raises(NotFoundError, match="nothing fits"):
        plans.file(bare.id, "launch.sh")


@pytest.mark.parametrize(
    "bad",
    [
        {"name": "x" * 201},
        {"note": "x" * 10_001},
        {"name": "nul \0"},
        {"note": "half \ud83d"},
        {"idempotency_key": ""},
        {"idempotency_key": "k" * 201},
        {"idempotency_key": "schlüssel"},
        {"idempotency_key": "tab\t"},
    ],
)
def test_what_cannot_be_stored_is_refused(plans: SavedPlans, database: Database, bad: dict[str, str]) -> None:
    """Before anything is written, and naming the field."""
    with pytest.raises(InvalidRequestError) as caught:
        plans.save(REQUEST, ANSWER, **bad)
    assert caught.value.errors[0].loc[0] in ("name", "note", "Idempotency-Key")
    assert rows(database) == 0


def test_a_document_that_is_no_json_is_refused(plans: SavedPlans) -> None:
    """Half a surrogate pair in a config cannot be written anywhere."""
    with pytest.raises(InvalidRequestError, match="cannot be stored"):
        plans.save(REQUEST | {"model": {"preset": "\ud800"}}, ANSWER)


def test_gpu_names() -> None:
    """Each GPU once, those of an instance by their catalogue key."""
    pools = [{"gpu": "t4"}, {"instance": "p5.48xlarge"}, {"gpu": "t4"}, {"gpu": "h100-sxm-80gb"}]
    assert gpu_names({"cluster": {"pools": pools}}) == "t4, h100-sxm-80gb"
