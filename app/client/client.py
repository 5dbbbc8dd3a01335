"""The client: one method for each thing the service does, with the types of the service itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from app.client import operations
from app.client.measurements import MeasurementCalls
from app.client.plans import PlanCalls
from app.client.sweeps import SweepCalls
from app.client.transport import Given
from app.web.diagnosing import DiagnosisOut
from app.web.schemas import CatalogEntryOut, CatalogOut


class Client(PlanCalls, MeasurementCalls, SweepCalls):
    """A service at an address.

    Answers are the models of the OpenAPI document; what a newer service adds to them is kept, and is read as further
    attributes or from ``model_dump()``. What repeats safely is tried again after 429, 502, 503, 504 or no answer, as long
    as ``Retry-After`` says. May be shared by threads; close it, or use it as a context manager.

    Args:
        url: of the service, with the prefix it is served under if it has one.
        api_key: sent as ``Authorization: Bearer``, to this address only: redirects are not followed.
        timeout_s: longest silence in one try.
        retry: how often is tried, and how long is waited.
        transport: sends the requests; httpx's own if left out.

    Raises:
        InvalidRequestError: the address or the key cannot be used.
    """

    def catalog(
        self,
        kind: Literal["gpus", "instances", "models"],
        words: str | None = None,
        *,
        sort: str | None = None,
        order: Literal["rising", "falling"] | None = None,
    ) -> CatalogOut:
        """A catalogue, or its entries with some words, with the titles of its sources.

        Args:
            kind: which one.
            words: looked for in names, makers and providers.
            sort: column to sort by, such as ``usable``; the catalogue's own order if left out.
            order: what is not known comes last either way.
        """
        query = {"q": words, "sort": sort, "order": order}
        return self._answer(operations.CATALOG, Given(path={"kind": kind}, query=query))

    def gpus(self) -> list[CatalogEntryOut]:
        """GPUs that a request can name."""
        return self.catalog("gpus").gpus or []

    def instances(self) -> list[CatalogEntryOut]:
        """Cloud instances that a request can name."""
        return self.catalog("instances").instances or []

    def models(self) -> list[CatalogEntryOut]:
        """Models that a request can name."""
        return self.catalog("models").models or []

    def diagnose(
        self, text: str = "", *, request: Mapping[str, Any] | None = None, peak_bytes: int | None = None,
        counter: Literal["allocated", "reserved", "device"] | None = None, step_s: float | None = None,
    ) -> DiagnosisOut:  # fmt: skip
        """Why a run failed or was slow, and what helps; nothing is stored.

        Args:
            text: the end of its log.
            request: a PlanRequest of which parts may be missing.
            peak_bytes: highest memory of one GPU, by this ``counter``.
            step_s: seconds of one optimizer step.
        """
        measured = {"peak_bytes": peak_bytes, "counter": counter, "step_s": step_s}
        body = {"text": text, "measured": {key: value for key, value in measured.items() if value is not None}}
        return self._answer(operations.DIAGNOSE, Given(body=body | ({"request": dict(request)} if request else {})))

    def ready(self) -> dict[str, str]:
        """What ``/readyz`` says where plans can be saved; otherwise ``ServiceUnavailableError`` at once, with what is wrong."""
        return {key: str(value) for key, value in self._json(operations.READY, Given()).items()}
