"""Where a request comes from: by https or not, by which name, and from whose page."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.services.saved_plans import ForbiddenError
from app.web import problems
from app.web.limits import Network, is_in

_PROBES = frozenset({"/healthz", "/readyz"})
"""An orchestrator asks by address; the answers depend on no name."""


class AllowedHosts:
    """Answers 421 to a request for a name that is not this service's, which could come back in an answer's links."""

    def __init__(self, app: ASGIApp, hosts: str) -> None:
        self._app = app
        names = [name.strip().lower() for name in hosts.split(",") if name.strip()]
        self._names = frozenset(name for name in names if not name.startswith("*"))
        self._endings = tuple(name[1:] for name in names if name.startswith("*"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        given = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
        host = host_of(given)
        if scope["type"] != "http" or scope["path"] in _PROBES or host in self._names or host.endswith(self._endings or ("\0",)):
            await self._app(scope, receive, send)
            return
        detail = f"the request is for {given[:100]!r}, which is not a name of this service; its operator sets SHARDPLAN_ALLOWED_HOSTS"
        problem = problems.Problem(status=421, code="unknown_host", title="This is another host", detail=detail)
        await problems.respond(Request(scope), problem)(scope, receive, send)


def host_of(header: str) -> str:
    """The name in a ``Host`` header, without its port.

    Example:
        >>> host_of("Plans.example.org:8000"), host_of("[::1]:8000")
        ('plans.example.org', '[::1]')
    """
    name, colon, port = header.strip().lower().rpartition(":")
    return (name if colon and port.isdecimal() else header.strip().lower()).rstrip(".")


def came_by_https(scope: Scope, trusted: tuple[Network, ...]) -> bool:
    """Whether the client spoke https: to this server, or to a trusted proxy that says so."""
    if scope.get("scheme") == "https" or not trusted:
        return scope.get("scheme") == "https"
    peer = (scope.get("client") or ("", 0))[0]
    said = ",".join(Headers(scope=scope).getlist("x-forwarded-proto")).rpartition(",")[2].strip().lower()
    return said == "https" and is_in(peer, trusted)


def refuse_cross_site(request: Request) -> None:
    """Refuse a post that another site's page sent.

    Raises:
        ForbiddenError: the browser says so in Sec-Fetch-Site, or in Origin where it does not send that.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        own = site in ("same-origin", "none")
    else:
        own = origin is None or urlsplit(origin).netloc == request.headers.get("host", "")
    if not own:
        raise ForbiddenError("this was sent from another site's page; open Shardplan itself and send it there")


def local_path(text: str) -> str:
    """An address of this service to go on to; ``/`` for what is anything else, another site above all.

    Example:
        >>> local_path("/plans?q=a"), local_path("//evil.example"), local_path("https://evil.example"), local_path("/\\\\evil")
        ('/plans?q=a', '/', '/', '/')
    """
    local = text.startswith("/") and text.isprintable() and "\\" not in text and not text.startswith("//")
    return text if local and len(text) <= 2000 else "/"
