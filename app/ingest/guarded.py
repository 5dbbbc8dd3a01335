"""Connections of a model fetch: to checked addresses only, in plain bytes, within one deadline, without anybody's credentials.

The rules stand below the HTTP client, where a name has become an address: the address that was checked is the one connected to, so
neither a redirect nor a name that resolves differently a second time leads anywhere else. Proxies are not used, since they resolve
names themselves.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from ssl import SSLContext
from typing import Any

import httpcore2
import httpx2

MAX_REDIRECTS = 3
_CONNECT_S = 3.0
"""Longest wait for one address to answer."""
_UNICAST, _NAT64 = IPv6Network("2000::/3"), IPv6Network("64:ff9b::/96")
_UNSENT = frozenset({b"authorization", b"cookie", b"accept-encoding", b"user-agent"})

Resolve = Callable[[str, int], list[str]]
"""Name and port to addresses."""


class FetchRefusedError(Exception):
    """The hub asked for something a fetch does not do: another kind of address, or more bytes than a config.json has."""


@dataclass(slots=True, kw_only=True)
class Fetch:
    """What one fetch may still do.

    Attributes:
        deadline: of the whole fetch, on the clock of ``time.monotonic``.
        bytes_left: bytes it may still read, headers included.
        own: scheme, host and port that the operator named, which may be private and without TLS; None where all must be public.
    """

    deadline: float
    bytes_left: int
    own: tuple[str, str, int] | None = None

    def left_s(self, most: float | None) -> float:
        """Seconds until the deadline, or ``most`` if that is sooner.

        Raises:
            httpcore2.ReadTimeout: there are none left.
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise httpcore2.ReadTimeout("the deadline of the fetch has passed")
        return left if most is None else min(most, left)


FETCH: ContextVar[Fetch] = ContextVar("FETCH")
"""The fetch that this thread is at."""


def is_public(address: str) -> bool:
    """Whether an address is one of the internet: not of this machine, a private network, a group or a reserved range.

    IPv4 addresses inside IPv6 ones are looked at as what they are; tunnels that hide one (6to4, Teredo) are not public.

    Example:
        >>> [is_public(a) for a in ("93.184.215.14", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "64:ff9b::a00:1")]
        [True, False, False, False, False, False]
    """
    found: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif found in _NAT64:
            found = IPv4Address(int(found) & 0xFFFFFFFF)
        elif found not in _UNICAST or found.sixtofour is not None or found.teredo is not None:
            return False
    return found.is_global and not (found.is_multicast or found.is_reserved or found.is_unspecified)


def addresses_of(host: str, port: int) -> list[str]:
    """What the system's resolver knows of a name, in its order.

    Raises:
        httpcore2.ConnectError: nothing.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpcore2.ConnectError(f"the name {host} is not known") from error
    return list(dict.fromkeys(str(info[4][0]) for info in found))


class GuardedBackend(httpcore2.NetworkBackend):
    """Resolves a name itself, checks every address it has, and connects to one of these."""

    def __init__(self, resolve: Resolve = addresses_of) -> None:
        self._resolve = resolve
        self._inner = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        """A connection to a checked address of the host; raises ``FetchRefusedError``, or the library's ``ConnectError``."""
        fetch, found = FETCH.get(), self._resolve(host, port)
        own = fetch.own is not None and fetch.own[1:] == (host, port)
        if not own and not all(map(is_public, found)):
            raise FetchRefusedError(f"{host[:100]} is no public address")
        failure: Exception = httpcore2.ConnectError(f"{host} has no address")
        for address in found:
            try:
                wait = fetch.left_s(_CONNECT_S if timeout is None else min(timeout, _CONNECT_S))
                stream = self._inner.connect_tcp(address, port, wait, local_address, socket_options or ())
                return _GuardedStream(stream, fetch)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure


class _GuardedStream(httpcore2.NetworkStream):
    """A connection that keeps the deadline and counts what it reads."""

    def __init__(self, inner: httpcore2.NetworkStream, fetch: Fetch) -> None:
        self._inner, self._fetch = inner, fetch

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = self._inner.read(max_bytes, self._fetch.left_s(timeout))
        self._fetch.bytes_left -= len(data)
        if self._fetch.bytes_left < 0:
            raise FetchRefusedError("the answer is larger than any description of a model")
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._fetch.left_s(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return _GuardedStream(self._inner.start_tls(ssl_context, server_hostname, self._fetch.left_s(timeout)), self._fetch)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class GuardedTransport(httpx2.BaseTransport):
    """Sends the requests of a fetch, each over a connection of its own."""

    def __init__(self, user_agent: str, backend: httpcore2.NetworkBackend | None = None) -> None:
        self._user_agent = user_agent
        self._pool = httpcore2.ConnectionPool(
            ssl_context=httpx2.create_ssl_context(), max_keepalive_connections=0, network_backend=backend or GuardedBackend()
        )

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request; raises ``FetchRefusedError``, or an ``httpx2.TransportError``."""
        url, own = request.url, FETCH.get().own
        port = url.port or {"http": 80, "https": 443}.get(url.scheme, 0)
        if url.scheme != "https" and own != (url.scheme, url.host, port):
            raise FetchRefusedError(f"{url.scheme}://{url.host[:100]} is not https")
        with _in_httpx_words():
            answer = self._pool.handle_request(
                httpcore2.Request(
                    method=request.method,
                    url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                    headers=self._headers(request),
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        response = httpx2.Response(status_code=answer.status, headers=answer.headers, stream=_Body(answer), extensions=answer.extensions)
        if response.headers.get("content-encoding", "identity") != "identity":
            response.close()
            raise FetchRefusedError("the answer is compressed, which was not asked for")
        return response

    def close(self) -> None:
        self._pool.close()

    def _headers(self, request: httpx2.Request) -> list[tuple[bytes, bytes]]:
        """Without anybody's token or cookie, and without what the library tells of this machine."""
        kept = [(name, value) for name, value in request.headers.raw if name.lower() not in _UNSENT]
        return [*kept, (b"Accept-Encoding", b"identity"), (b"User-Agent", self._user_agent.encode())]


class _Body(httpx2.SyncByteStream):
    """The bytes of an answer, with the errors that the client's callers know."""

    def __init__(self, answer: httpcore2.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        with _in_httpx_words():
            yield from self._answer.iter_stream()

    def close(self) -> None:
        with _in_httpx_words():
            self._answer.close()


@contextmanager
def _in_httpx_words() -> Iterator[None]:
    try:
        yield
    except httpcore2.TimeoutException as error:
        raise httpx2.ReadTimeout(str(error)) from error
    except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.UnsupportedProtocol) as error:
        raise httpx2.NetworkError(str(error)) from error


def guarded_client(user_agent: str, backend: httpcore2.NetworkBackend | None = None) -> httpx2.Client:
    """A client under these rules, deaf to the environment: no proxy, no .netrc."""
    transport = GuardedTransport(user_agent, backend)
    return httpx2.Client(transport=transport, trust_env=False, follow_redirects=True, max_redirects=MAX_REDIRECTS, timeout=None)
