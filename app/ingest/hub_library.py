"""huggingface_hub as it is used here: two questions to one hub, under the rules of ``guarded``, its errors in our words."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from http import HTTPStatus

import httpx2
from huggingface_hub import HfApi, get_session, hf_hub_url, set_client_factory
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]  # public, in a list that is not read

from app import ENGINE_VERSION
from app.domain.errors import ShardplanError
from app.ingest.guarded import FETCH, MAX_REDIRECTS, Fetch, FetchRefusedError, guarded_client
from app.ingest.hub_errors import refused, unavailable

_MOST_READ = 8 * 2**20
"""Bytes of one fetch in all: headers, redirects, and a description of a repository with all its files by name."""
_PORTS = {"http": 80, "https": 443}

log = logging.getLogger(__name__)


class HubLibrary:
    """What is asked of one hub. Each question is put inside ``fetching``."""

    def __init__(self, url: str, *, may_be_private: bool) -> None:
        _use_guarded_client()
        self._api = HfApi(endpoint=url, token=False)
        self._endpoint = url
        address = httpx2.URL(url)
        own = (address.scheme, address.host, address.port or _PORTS[address.scheme])
        self._own = own if may_be_private else None

    @contextmanager
    def fetching(self, deadline: float) -> Iterator[None]:
        """Let this thread ask, until a moment of ``time.monotonic``; errors come out in our words."""
        token = FETCH.set(Fetch(deadline=deadline, bytes_left=_MOST_READ, own=self._own))
        try:
            yield
        except FetchRefusedError as error:
            log.warning("a fetch was refused: %s", error)
            raise unavailable(f"leads elsewhere: {error}") from error
        except httpx2.TooManyRedirects as error:
            raise unavailable(f"redirects more than {MAX_REDIRECTS} times") from error
        except httpx2.TimeoutException as error:
            raise unavailable("did not answer in time") from error
        except httpx2.HTTPError as error:
            raise unavailable("does not answer") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise unavailable("answers with something that describes no repository") from error
        finally:
            FETCH.reset(token)

    def commit_of(self, hf_id: str, revision: str) -> str:
        """The commit that a branch or tag stands for; empty where the hub names none."""
        with _told(hf_id, revision):
            return str(self._api.model_info(hf_id, revision=revision, expand=["sha"]).sha or "")

    def file_at(self, hf_id: str, commit: str, filename: str, *, most: int) -> bytes:
        """The beginning of a file at a commit: all of it, or more than ``most`` bytes."""
        url, body = hf_hub_url(hf_id, filename, revision=commit, endpoint=self._endpoint), b""
        with _told(hf_id, commit), get_session().stream("GET", url) as answer:
            hf_raise_for_status(answer)
            if answer.status_code != HTTPStatus.OK:
                raise refused(f"the hub gives no {filename} of {hf_id} (it answers {answer.status_code})")
            for chunk in answer.iter_bytes():
                body += chunk
                if len(body) > most:
                    break
        return body


@cache
def _use_guarded_client() -> None:
    """Let everything huggingface_hub sends in this process go through a client of ours."""
    set_client_factory(partial(guarded_client, f"shardplan/{ENGINE_VERSION}"))


@contextmanager
def _told(hf_id: str, revision: str) -> Iterator[None]:
    """The hub's refusals in our words."""
    try:
        yield
    except HFValidationError as error:
        raise refused(f"{hf_id} is the name of no repository") from error
    except HfHubHTTPError as error:
        raise _in_words(error, hf_id, revision) from error


def _in_words(error: HfHubHTTPError, hf_id: str, revision: str) -> ShardplanError:
    status = error.response.status_code
    if isinstance(error, GatedRepoError):
        return refused(f"{hf_id} is gated: the hub gives its files to accounts that were granted access, and this service has none")
    if isinstance(error, RevisionNotFoundError):
        return refused(f"{hf_id} has no revision {revision}", "revision")
    if isinstance(error, RemoteEntryNotFoundError):
        return refused(f"{hf_id} has no config.json at revision {revision}")
    if isinstance(error, RepositoryNotFoundError) or status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
        return refused(f"the hub has no public model {hf_id}: there is none of that name, or it is private (it answers {status})")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        return unavailable(f"answers {status} at the moment")
    return refused(f"the hub refuses to give {hf_id} at revision {revision} (it answers {status})")
