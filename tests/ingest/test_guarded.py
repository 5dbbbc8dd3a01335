"""Where a fetch may connect to: names are looked up once, every address is checked, and a checked one is connected to."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import httpcore2
import httpx2
import pytest

from app.ingest.guarded import FETCH, Fetch, FetchRefusedError, GuardedBackend, Resolve, guarded_client, is_public
from tests.ingest.hub_server import StandIn, standing_in

PUBLIC = ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "64:ff9b::5db8:d70e"]
NOT_PUBLIC = [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.8.8.8", "169.254.169.254", "172.16.0.1", "192.0.0.1", "192.0.2.1",
    "192.168.1.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::127.0.0.1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1",
    "::ffff:10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:53aa:64c::1",
]  # fmt: skip


@pytest.fixture
def server() -> Iterator[StandIn]:
    """Something that answers on this machine."""
    with standing_in({}) as server:
        yield server


@pytest.fixture
def fetch(server: StandIn) -> Iterator[Fetch]:
    """A fetch from a hub named hub.test at that server's port."""
    fetch = Fetch(deadline=time.monotonic() + 5, bytes_left=10_000, own=("http", "hub.test", port_of(server)))
    token = FETCH.set(fetch)
    yield fetch
    FETCH.reset(token)


def port_of(server: StandIn) -> int:
    """Where it listens."""
    return int(server.url.rpartition(":")[2])


def client(resolve: Resolve) -> httpx2.Client:
    """A client with a resolver of the test's."""
    return guarded_client("test/1", GuardedBackend(resolve))


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_public(address: str) -> None:
    """Of both kinds, and the one inside the other that a network without IPv4 makes of names."""
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_others_are_not(address: str) -> None:
    """This machine, private and shared networks, link-local with the clouds' metadata, groups, documentation, tunnels."""
    assert not is_public(address)


def test_the_operators_own_hub_may_be_private(server: StandIn, fetch: Fetch) -> None:
    """At the port that was named, and whatever of its addresses answers."""
    url = f"http://hub.test:{port_of(server)}/api/models/org/name"
    assert client(lambda *_: ["127.0.0.2", "127.0.0.1"]).get(url).status_code == 200
    assert server.headers[0]["host"] == f"hub.test:{port_of(server)}"


def test_another_port_of_the_same_machine_is_not_its_own(server: StandIn, fetch: Fetch) -> None:
    """A database beside the mirror is none of our business."""
    with pytest.raises(FetchRefusedError, match="not https"):
        client(lambda *_: ["127.0.0.1"]).get("http://hub.test:1/")
    with pytest.raises(FetchRefusedError, match="no public address"):
        client(lambda *_: ["127.0.0.1"]).get("https://hub.test:1/")


@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["93.184.215.14", "10.0.0.1"], ["::1", "93.184.215.14"]])
def test_a_name_with_one_private_address_is_refused(server: StandIn, fetch: Fetch, addresses: list[str]) -> None:
    """Before anything is connected to."""
    with pytest.raises(FetchRefusedError, match="no public address"):
        client(lambda *_: addresses).get(f"https://other.test:{port_of(server)}/")
    assert server.asked == []


def test_a_name_is_looked_up_once(server: StandIn, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was checked is what is connected to: a second look-up, which could say something else, does not happen."""
    connected: list[str] = []
    answers = iter([["93.184.215.14"], ["127.0.0.1"]])

    def connect(_: object, host: str, *others: object) -> httpcore2.NetworkStream:
        connected.append(host)
        raise httpcore2.ConnectError("not in a test")

    monkeypatch.setattr(httpcore2.SyncBackend, "connect_tcp", connect)
    with pytest.raises(httpx2.NetworkError):
        client(lambda *_: next(answers)).get("https://rebinding.test/")
    assert connected == ["93.184.215.14"]


def test_nothing_is_sent_outside_a_fetch(server: StandIn) -> None:
    """The client of the whole process does nothing for whoever set no rules."""
    with pytest.raises(LookupError):
        client(lambda *_: ["93.184.215.14"]).get("https://hub.test/")


def test_a_fetch_ends_at_its_deadline_and_at_its_bytes(server: StandIn, fetch: Fetch) -> None:
    """Whatever timeout the client has."""
    url = f"http://hub.test:{port_of(server)}/api/models/org/name"
    fetch.bytes_left = 100
    with pytest.raises(FetchRefusedError, match="larger"):
        client(lambda *_: ["127.0.0.1"]).get(url)
    fetch.deadline = time.monotonic()
    with pytest.raises(httpx2.TimeoutException):
        client(lambda *_: ["127.0.0.1"]).get(url)


def test_a_name_nobody_knows_is_a_connection_error(fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the client's callers expect one."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(httpx2.NetworkError, match=r"the name hub\.invalid is not known"):
        guarded_client("test/1").get("https://hub.invalid/")


@pytest.mark.parametrize("host", ["0x7f000001", "2130706433", "127.1"])
def test_odd_spellings_of_an_address_are_looked_up_as_well(fetch: Fetch, host: str) -> None:
    """What the system reads as 127.0.0.1 is refused as that."""
    with pytest.raises(FetchRefusedError):
        guarded_client("test/1").get(f"https://{host}/")
