"""Which words of a route's controllers mean that a canary's Service is known to the Gateways."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.plan.canary.known_to_gateway import is_known_to_gateways, is_named_by

VERSION = 4


def a_route(*parents: dict[str, Any], **weights: int | None) -> dict[str, Any]:
    """One with two rules whose backends have these weights."""
    backends = [
        {"name": name.replace("_", "-"), **({} if weight is None else {"weight": weight})}
        for name, weight in weights.items()
    ]
    return {
        "metadata": {"name": "chat", "generation": VERSION},
        "spec": {"rules": [{"backendRefs": backends}] * 2},
        "status": {"parents": list(parents)},
    }


def of_version(version: int | None, gateway: str = "gate", controller: str = "a") -> dict[str, Any]:
    seen = {} if version is None else {"observedGeneration": version}
    conditions = [{"type": "Accepted", "status": "True", **seen}]
    return {
        "parentRef": {"name": gateway},
        "controllerName": controller,
        "conditions": conditions,
    }


@pytest.mark.parametrize(
    ("parents", "known"),
    [
        ((), True),
        ((of_version(VERSION),), True),
        ((of_version(None),), True),
        ((of_version(VERSION - 1),), False),
        ((of_version(VERSION), of_version(VERSION - 1, "other-gate")), False),
        ((of_version(VERSION - 1, controller="gone"), of_version(VERSION)), True),
    ],
)
def test_every_gateway_that_is_spoken_of_has_to_know_it(
    parents: tuple[dict[str, Any], ...], known: bool
) -> None:
    route = a_route(*parents, chat=100, chat_canary=0)
    assert is_known_to_gateways(route, "chat-canary") is known


def test_one_that_gets_requests_already_is_known() -> None:
    route = a_route(of_version(VERSION - 1), chat=80, chat_canary=20)
    assert is_known_to_gateways(route, "chat-canary")


def test_what_the_route_does_not_name_in_every_rule_is_not_known() -> None:
    assert not is_known_to_gateways(None, "chat-canary")
    assert not is_known_to_gateways(a_route(of_version(VERSION), chat=None), "chat-canary")
    route = a_route(chat=100, chat_canary=0)
    route["spec"]["rules"].append({"backendRefs": [{"name": "chat"}]})
    assert not is_known_to_gateways(route, "chat-canary")


def test_one_that_any_rule_names_may_still_get_requests() -> None:
    assert is_named_by(a_route(chat=100, chat_canary=0), "chat-canary")
    assert not is_named_by(a_route(chat=None), "chat-canary")
    assert not is_named_by(None, "chat-canary")
    route = a_route(chat=None)
    route["spec"]["rules"].append({"backendRefs": [{"name": "chat-canary", "weight": 1}]})
    assert is_named_by(route, "chat-canary")
