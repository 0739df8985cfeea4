"""Whose a request is: what counts, what is believed, and that it tells no secret."""

from __future__ import annotations

from typing import Any

import pytest

from atom.client_label import client_label
from atom.entrypoints.http.client_identity import ClientIdentity

HERE = client_label("addr", "127.0.0.1")


def scope(address: str | None = "127.0.0.1", **headers: str) -> dict[str, Any]:
    given = [(name.replace("_", "-").encode(), text.encode("latin-1")) for name, text in
             headers.items()]  # fmt: skip
    return {"headers": given, "client": None if address is None else (address, 4000)}


def test_clients_without_a_key_are_told_apart_by_their_address() -> None:
    whose = ClientIdentity()
    assert whose.of(scope()) == HERE
    assert whose.of(scope("10.0.0.7")) != HERE
    assert whose.of(scope(None)) == ""


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff", True),  # one subscriber's network
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("fe80::1%eth0", "fe80::1%eth1", True),
        ("somewhere", "elsewhere", False),
    ],
)
def test_an_address_is_what_one_sender_cannot_have_many_of(
    one: str, other: str, same: bool
) -> None:
    whose = ClientIdentity()
    assert (whose.of(scope(one)) == whose.of(scope(other))) is same


def test_a_key_that_nobody_checks_tells_clients_of_one_address_apart_only() -> None:
    whose = ClientIdentity()
    one = whose.of(scope(authorization="Bearer sk-one"))
    two = whose.of(scope(authorization="bearer sk-two"))
    assert one != two
    assert one.partition("/")[0] == two.partition("/")[0] == HERE
    assert whose.of(scope(authorization="Basic abc")) == HERE


def test_the_servers_own_key_tells_nobody_apart() -> None:
    whose = ClientIdentity(num_keys=1)
    assert whose.of(scope(authorization="Bearer the-key")) == HERE


def test_several_keys_that_the_server_checks_are_its_clients() -> None:
    whose = ClientIdentity(num_keys=2)
    assert whose.of(scope(authorization="Bearer one")) == client_label("key", "one")
    elsewhere = scope("10.0.0.7", authorization="Bearer one")
    assert whose.of(elsewhere) == client_label("key", "one")


def test_a_gateways_header_comes_before_all_and_is_believed_only_when_named() -> None:
    named = scope(x_tenant="team-a", authorization="Bearer k")
    whose = ClientIdentity(header="x-tenant")
    assert whose.of(named) == whose.of({**named, "client": ("10.9.9.9", 1)})
    assert whose.of(named) == client_label("header", "team-a")
    assert whose.of(scope(x_tenant="  ")) == HERE
    assert ClientIdentity().of(scope(x_tenant="team-a")) == HERE


@pytest.mark.parametrize("secret", ["sk-secret", "x" * 60_000, "\xff\xfe"])
def test_what_is_told_holds_no_secret_and_is_short(secret: str) -> None:
    for whose in (ClientIdentity(), ClientIdentity(header="x-tenant")):
        told = whose.of(scope(authorization=f"Bearer {secret}", x_tenant=secret))
        assert secret not in told
        assert len(told) <= 64
        assert told.isascii()
