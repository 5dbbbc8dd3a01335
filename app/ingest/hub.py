"""Fetches the config.json of a published model, where the operator has switched that on.

Through huggingface_hub, with a client of ours in it (``guarded``): a branch or tag is resolved to a commit first, and the file is read
at that commit. No code of a repository is ever run, no token sent, nothing written to disk.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from app.domain.errors import InvalidRequestError
from app.ingest.hub_errors import MissingExtraError, refused, unavailable
from app.ingest.nesting import too_deep

if TYPE_CHECKING:
    from app.ingest.hub_library import HubLibrary

MAX_BYTES = 2**20
"""Of a config.json; the largest known has 60 KB."""
MAX_DEPTH = 64
AT_ONCE, WAITING = 4, 12
"""Fetches that run at the same time, and those that may wait for one of them to end."""
_KEPT_CONFIGS, _KEPT_COMMITS, _COMMIT_KEPT_S = 128, 1024, 60.0
_REPOSITORY = re.compile(r"[a-z0-9][\w.-]{0,95}/[a-z0-9][\w.-]{0,95}", re.ASCII | re.IGNORECASE)
_REVISION = re.compile(r"[a-z0-9](?!.*\.\.)[\w./-]{0,99}", re.ASCII | re.IGNORECASE)
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """What a hub says of a model.

    Attributes:
        config: its config.json.
        commit: of the repository, at which that was read.
    """

    config: dict[str, Any]
    commit: str


class Hub:
    """One model hub, asked for small files of that one name."""

    def __init__(self, url: str, *, timeout_s: float, may_be_private: bool = False, library: HubLibrary | None = None) -> None:
        """Make ready to fetch; nothing is sent yet.

        Args:
            url: of the hub or a mirror.
            timeout_s: longest time one fetch may take, from request to answer, whatever the hub does meanwhile.
            may_be_private: the operator named this address, so it may be one of a private network.
            library: speaks to the hub; None for huggingface_hub.

        Raises:
            MissingExtraError: huggingface_hub is not installed.
        """
        self._timeout_s = timeout_s
        self._library = library or _installed(url.rstrip("/"), may_be_private=may_be_private)
        self._pool = ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="hub")
        self._slots = threading.BoundedSemaphore(AT_ONCE + WAITING)
        self._known = _Known()

    def close(self) -> None:
        """End; a fetch that runs is left to its deadline."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def model(self, hf_id: str, revision: str | None = None) -> HubModel:
        """The config.json of a repository at a branch, tag or commit (``main`` if none is named).

        Raises:
            InvalidRequestError: the name is none, or the hub has no such public file, or it is no config.json.
            UnavailableError: the hub does not answer in time, or too many fetches wait for it.
        """
        if not _REPOSITORY.fullmatch(hf_id):
            raise InvalidRequestError.at("model", "hf_id", msg=f"{hf_id[:80]!r} is not a repository", hint="write organisation/name")
        if revision is not None and not _REVISION.fullmatch(revision):
            raise InvalidRequestError.at(
                "model", "revision", msg=f"{revision[:80]!r} is not a revision", hint="write a branch, a tag or a commit"
            )
        wanted = revision or "main"
        return self._known.model(hf_id, wanted) or self._in_time(hf_id, wanted)

    def _in_time(self, hf_id: str, revision: str) -> HubModel:
        """Fetch on a thread of the pool, and answer at the deadline even where that thread does not."""
        deadline = time.monotonic() + self._timeout_s
        if not self._slots.acquire(blocking=False):
            raise unavailable(f"is being asked for {AT_ONCE + WAITING} models at the moment, and for no more than that")
        future = self._pool.submit(copy_context().run, self._fetch, hf_id, revision, deadline)
        future.add_done_callback(lambda _: self._slots.release())
        try:
            return future.result(timeout=self._timeout_s)
        except (TimeoutError, CancelledError) as error:
            future.cancel()
            raise unavailable(f"did not answer within {self._timeout_s:g} s") from error

    def _fetch(self, hf_id: str, revision: str, deadline: float) -> HubModel:
        commit = revision if _COMMIT.fullmatch(revision) else self._known.commit(hf_id, revision)
        with self._library.fetching(deadline):
            if commit is None:
                commit = self._library.commit_of(hf_id, revision)
                if not _COMMIT.fullmatch(commit):
                    raise unavailable(f"names no commit of {hf_id}")
            body = self._library.file_at(hf_id, commit, "config.json", most=MAX_BYTES)
        if len(body) > MAX_BYTES:
            raise refused(f"the config.json of {hf_id} is larger than {MAX_BYTES:,} bytes")
        found = HubModel(config=_parsed(hf_id, body), commit=commit)
        self._known.add(hf_id, revision, found)
        return found


class _Known:
    """What was fetched before: configs by commit, which never change, and for a minute the commits of branches and tags."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: OrderedDict[tuple[str, str], HubModel] = OrderedDict()
        self._commits: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()

    def model(self, hf_id: str, revision: str) -> HubModel | None:
        """The model at a revision, if both are known."""
        commit = revision if _COMMIT.fullmatch(revision) else self.commit(hf_id, revision)
        with self._lock:
            found = self._models.get((hf_id, commit)) if commit else None
            if found:
                self._models.move_to_end((hf_id, found.commit))
            return found

    def commit(self, hf_id: str, revision: str) -> str | None:
        """What a branch or tag stood for within the last minute."""
        with self._lock:
            commit, since = self._commits.get((hf_id, revision), (None, 0.0))
            return commit if time.monotonic() - since < _COMMIT_KEPT_S else None

    def add(self, hf_id: str, revision: str, found: HubModel) -> None:
        """Keep an answer, and forget what is longest unused."""
        with self._lock:
            self._models[hf_id, found.commit] = found
            self._commits[hf_id, revision] = (found.commit, time.monotonic())
            for kept, most in ((self._models, _KEPT_CONFIGS), (self._commits, _KEPT_COMMITS)):
                while len(kept) > most:
                    kept.popitem(last=False)


def _installed(url: str, *, may_be_private: bool) -> HubLibrary:
    """huggingface_hub under our rules: imported here only, since it is an extra."""
    try:
        from app.ingest.hub_library import HubLibrary
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"SHARDPLAN_FETCH_MODELS is on, but the package {error.name} is not installed; "
            "run: pip install 'shardplan[hub]', or leave the setting out"
        ) from error
    return HubLibrary(url, may_be_private=may_be_private)


def _parsed(hf_id: str, body: bytes) -> dict[str, Any]:
    try:
        config = orjson.loads(body)
    except orjson.JSONDecodeError:
        config = None
    if not isinstance(config, dict) or too_deep(config, MAX_DEPTH):
        raise refused(f"the config.json of {hf_id} is not a JSON object of a usable depth")
    return config
