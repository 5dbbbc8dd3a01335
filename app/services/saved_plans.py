"""Keep plans: save once per idempotency key, read, list, delete, and hand out their files."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import orjson

from app.catalog.instances import find_instance
from app.domain.errors import ConflictError, InvalidRequestError, NotFoundError, ShardplanError
from app.domain.plan import Artifact
from app.services.digest import sha256
from app.store.cursor import Cursor
from app.store.repository import IdempotencyRecord, NewPlan, PlanFilter, PlanRepository, PlanSummary, StoredPlan
from app.store.session import Database

MAX_NAME, MAX_NOTE, MAX_KEY = 200, 10_000, 200
_MEDIA_TYPES = {
    "json": "application/json",
    "yaml": "application/yaml",
    "py": "text/x-python",
    "sh": "text/x-shellscript",
}


class ForbiddenError(ShardplanError):
    """The edit token does not belong to the plan."""

    code = "forbidden"
    title = "Not allowed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan(StoredPlan):
    """A plan as it was saved.

    Attributes:
        edit_token: the secret that deletes it, known only in the answer to the save that made it; otherwise None.
        replayed: this save found the plan that an earlier one with the same idempotency key had made.
    """

    edit_token: str | None = None
    replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPage:
    """One page of a list; ``next_cursor`` is None on the last."""

    items: tuple[PlanSummary, ...]
    next_cursor: str | None


class SavedPlans:
    """The use cases of ``/plans``, over one database."""

    def __init__(self, database: Database, *, page_size_max: int = 100, on_deleted: Callable[[], None] = lambda: None) -> None:
        self._database, self._on_deleted = database, on_deleted
        self.page_size_max = page_size_max

    def save(
        self,
        request: Mapping[str, Any],
        answer: Mapping[str, Any],
        *,
        name: str = "",
        note: str = "",
        idempotency_key: str | None = None,
        plan_id: str | None = None,
    ) -> SavedPlan:
        """Save a request and the answer it got, in one transaction.

        Args:
            request: the PlanRequest document as the client sent it.
            answer: the Plan document; its verdict, engine_version, model.name and request.cluster are indexed.
            name, note: the client's own words.
            plan_id: an id of ``new_plan_id`` that the answer's files already name; a new one if left out.
            idempotency_key: the same key with the same request, name and note saves once and returns that plan.

        Raises:
            InvalidRequestError: name, note or key too long or not storable.
            ConflictError: the key was used for another request.
            UnavailableError: the database does not answer.
        """
        _check_words(name, note)
        token = secrets.token_urlsafe(32)
        plan = _new_plan(request, answer, name=name.strip(), note=note.strip(), edit_token_hash=sha256(token.encode()))
        plan = replace(plan, id=plan_id) if plan_id else plan
        if idempotency_key is None:
            with self._database.session(write=True) as session:
                PlanRepository(session).add(plan)
            return _saved(plan, edit_token=token)
        claim = _claim(idempotency_key, plan.request, plan.name, plan.note, plan.id)
        if self._add_claimed(plan, claim):
            return _saved(plan, edit_token=token)
        replay = self._replayed(claim)
        if replay is None:
            raise ConflictError("the plan saved under this Idempotency-Key was deleted just now; send it again")
        return replay

    def earlier(
        self, request: Mapping[str, Any], *, name: str = "", note: str = "", idempotency_key: str | None = None
    ) -> SavedPlan | None:
        """The plan that an earlier ``save`` under this key made, so that a retry computes nothing; None where there was none.

        Another save of the key may come between this and ``save``, which finds it then.

        Raises:
            InvalidRequestError, ConflictError, UnavailableError: as ``save`` does.
        """
        if idempotency_key is None:
            return None
        _check_words(name, note)
        return self._replayed(_claim(idempotency_key, _document(request), name.strip(), note.strip()))

    def get(self, plan_id: str) -> SavedPlan:
        """Read a plan; raises ``NotFoundError``."""
        with self._database.session() as session:
            return _saved(PlanRepository(session).get(plan_id))

    def list(self, wanted: PlanFilter | None = None, *, cursor: str | None = None, limit: int = 20) -> PlanPage:
        """One page of saved plans, the newest first.

        Raises:
            InvalidRequestError: the cursor is not of this list, or the limit is out of range.
        """
        if not 1 <= limit <= self.page_size_max:
            raise InvalidRequestError.at("limit", msg=f"limit {limit} is not between 1 and {self.page_size_max}")
        after = Cursor.decode(cursor) if cursor else None
        with self._database.session() as session:
            found = PlanRepository(session).list(wanted or PlanFilter(), after=after, limit=limit + 1)
        items = found[:limit]
        more = len(found) > limit
        return PlanPage(items=items, next_cursor=Cursor(items[-1].created_at, items[-1].id).encode() if more else None)

    def delete(self, plan_id: str, edit_token: str) -> None:
        """Delete a plan; raises ``NotFoundError``, or ``ForbiddenError`` where the token is another one."""
        with self._database.session(write=True) as session:
            deleted = PlanRepository(session).delete(plan_id, sha256(edit_token.encode(errors="replace")))
        if not deleted:
            raise ForbiddenError("this edit_token is not the plan's; it was given once, when the plan was saved")
        self._on_deleted()

    def file(self, plan_id: str, filename: str, *, dialect: str = "plain") -> Artifact:
        """A generated file of a saved plan, as it was saved; raises ``NotFoundError``."""
        answer = self.get(plan_id).answer
        files, trainer = answer.get("files") or {}, (answer.get("dialects") or {}).get("hf_auto")
        if dialect != "plain" and trainer is None:
            raise NotFoundError("this plan was saved without files for the Hugging Face Trainer; plan again to get them")
        texts = files | (trainer or {}) if dialect == "hf_auto" else (trainer or {}) | files
        if filename not in texts:
            has = f"it has {', '.join(texts)}" if texts else "it has no files, since nothing fits"
            raise NotFoundError(f"this plan has no file {filename[:80]!r}; {has}")
        media_type = _MEDIA_TYPES.get(filename.rpartition(".")[2], "text/plain")
        return Artifact(filename=filename, media_type=media_type, text=texts[filename])

    def _replayed(self, claim: IdempotencyRecord) -> SavedPlan | None:
        with self._database.session() as session:
            repository = PlanRepository(session)
            earlier = repository.claimed(claim.key)
            if earlier is None:
                return None
            if earlier.request_hash != claim.request_hash:
                raise ConflictError("this Idempotency-Key was used for another request; a key stands for one request, take a new one")
            return _saved(repository.get(earlier.plan_id), replayed=True)

    def _add_claimed(self, plan: NewPlan, claim: IdempotencyRecord) -> bool:
        with self._database.session(write=True) as session:
            repository = PlanRepository(session)
            repository.add(plan)
            if repository.claim(claim, plan.created_at):
                return True
            session.rollback()  # another save of the same key won: this plan was never there
            return False


def new_plan_id() -> str:
    """An id that no plan has and nobody can guess."""
    return secrets.token_urlsafe(16)


def key_of_client(client: str, idempotency_key: str | None) -> str | None:
    """What an ``Idempotency-Key`` is kept under: of each client its own, where clients are known.

    Raises:
        InvalidRequestError: the key is too long or not printable ASCII.
    """
    if not client or idempotency_key is None:
        return idempotency_key
    check_key(idempotency_key)
    return f"{client}:{sha256(idempotency_key.encode())}"


def _claim(key: str, request: Mapping[str, Any], name: str, note: str, plan_id: str = "") -> IdempotencyRecord:
    """A key with the hash of what it is to stand for."""
    check_key(key)
    digest = sha256(orjson.dumps([request, name, note], option=orjson.OPT_SORT_KEYS))
    return IdempotencyRecord(key=key, request_hash=digest, plan_id=plan_id)


def _new_plan(request: Mapping[str, Any], answer: Mapping[str, Any], *, name: str, note: str, edit_token_hash: str) -> NewPlan:
    understood = answer.get("request") or request
    return NewPlan(
        id=new_plan_id(),
        created_at=datetime.now(UTC),
        name=name,
        note=note,
        engine_version=answer["engine_version"],
        model_name=_short(answer["model"]["name"]),
        gpu_name=_short(gpu_names(understood)),
        verdict=answer["verdict"],
        request=_document(request),
        answer=_document(answer),
        edit_token_hash=edit_token_hash,
    )


def gpu_names(request: Mapping[str, Any]) -> str:
    """Catalogue keys of the GPUs a request asks for, each once, in the order of its pools."""
    pools = request["cluster"]["pools"]
    return ", ".join(dict.fromkeys(_gpu_name(pool) for pool in pools))


def _gpu_name(pool: Mapping[str, Any]) -> str:
    """Catalogue key of a pool's GPU, its instance's, or the name of one described inline."""
    given = pool.get("gpu")
    if isinstance(given, Mapping):
        return str(given.get("name") or "custom GPU")
    return str(given or find_instance(pool["instance"], ("cluster", "pools")).gpu)


def _short(text: str) -> str:
    return text.replace("\0", "")[:300]


def _document(value: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a JSON document that nothing else can change."""
    try:
        copy: dict[str, Any] = orjson.loads(orjson.dumps(value))
    except orjson.JSONEncodeError as error:
        raise InvalidRequestError(f"the request cannot be stored as JSON: {error}") from error
    return copy


def _saved(plan: StoredPlan, *, edit_token: str | None = None, replayed: bool = False) -> SavedPlan:
    shared = {name: getattr(plan, name) for name in StoredPlan.__dataclass_fields__}
    return SavedPlan(**shared, edit_token=edit_token, replayed=replayed)


def _check_words(name: str, note: str) -> None:
    check_text("name", name, MAX_NAME)
    check_text("note", note, MAX_NOTE)


def check_text(field: str, value: str, longest: int) -> None:
    """Refuse a text that is too long, or that no database holds; raises ``InvalidRequestError``."""
    if len(value) > longest:
        raise InvalidRequestError.at(field, msg=f"{field} has {len(value):,} characters, more than {longest:,}")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidRequestError.at(field, msg=f"{field} holds a character that is no text (U+0000 or half a pair)")


def check_key(key: str) -> None:
    """Refuse what is no ``Idempotency-Key``; raises ``InvalidRequestError``."""
    if not (1 <= len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise InvalidRequestError.at(
            "Idempotency-Key",
            msg=f"Idempotency-Key must be 1 to {MAX_KEY} printable ASCII characters",
            hint="use a UUID",
        )
