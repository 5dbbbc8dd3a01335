"""How many requests one client, by key or else by address, may send in a while: counted in this process, off unless a rate is set."""

from __future__ import annotations

import math
import time
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from limits import parse_many
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web import problems

Network = IPv4Network | IPv6Network
UNCOUNTED = ("/healthz", "/readyz", "/metrics", "/static/")
"""What operations ask and what a page loads beside itself."""
_IPV6_SITE = 64
"""Bits of an IPv6 address that stand for one client, who has all addresses behind them."""


class RateLimit:
    """Answers 429 once a client has sent as many requests as its rates allow, and tells every client how many are left."""

    def __init__(self, app: ASGIApp, rates: str, trusted_proxies: tuple[Network, ...] = ()) -> None:
        self._app = app
        self._rates = parse_many(rates)
        self._trusted = trusted_proxies
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["path"].startswith(UNCOUNTED):
            await self._app(scope, receive, send)
            return
        key = scope.get("state", {}).get("key")
        client = f"key {key.owner}" if key else client_of(scope, self._trusted)
        refused = next((rate for rate in self._rates if not self._limiter.hit(rate, client)), None)
        windows = [(rate, self._limiter.get_window_stats(rate, client)) for rate in ([refused] if refused else self._rates)]
        rate, window = min(windows, key=lambda found: found[1].remaining)
        wait = max(1, math.ceil(window.reset_time - time.time()))
        told = {"RateLimit-Limit": str(rate.amount), "RateLimit-Remaining": str(max(0, window.remaining)), "RateLimit-Reset": str(wait)}
        if refused is None:
            await self._app(scope, receive, _told(send, told))
            return
        detail = f"this {'key' if key else 'address'} may send {refused}; it may send again in {wait} s"
        problem = problems.Problem(
            status=429, code="too_many_requests", title="Too many requests", detail=detail, headers=told | {"Retry-After": str(wait)}
        )
        await problems.respond(Request(scope), problem)(scope, receive, send)


def networks_of(text: str) -> tuple[Network, ...]:
    """Addresses and networks of a list with commas.

    Raises:
        ValueError: something is neither.

    Example:
        >>> networks_of("10.0.0.0/8, ::1")
        (IPv4Network('10.0.0.0/8'), IPv6Network('::1/128'))
    """
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def client_of(scope: Scope, trusted: tuple[Network, ...]) -> str:
    """Address that a request comes from: the peer, or whom a trusted proxy says it answers, read from the nearest hop outwards."""
    peer = (scope.get("client") or ("unknown", 0))[0]
    hops = [hop.strip() for value in Headers(scope=scope).getlist("x-forwarded-for") for hop in value.split(",")]
    while hops and is_in(peer, trusted):
        nearest = hops.pop()
        if _network(nearest) is None:
            break  # what is no address was not written by a proxy of ours
        peer = nearest
    network = _network(peer)
    return peer if network is None else str(network)


def is_in(address: str, networks: tuple[Network, ...]) -> bool:
    """Whether an address is one of some networks."""
    try:
        return any(ip_address(address) in network for network in networks)
    except ValueError:
        return False


def _network(address: str) -> Network | None:
    """The one client behind an address: itself, or its IPv6 site; None for what is no address."""
    try:
        found = ip_address(address)
    except ValueError:
        return None
    return ip_network((found, 32 if found.version == 4 else _IPV6_SITE), strict=False)


def _told(send: Send, told: dict[str, str]) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(told)
        await send(message)

    return send_with_headers
