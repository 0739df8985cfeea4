"""Laying a profile below a spec: whatever both say, the spec's own values stay, and every field
that is named as the profile's is from it.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.reconcile.profiles.profile import Laid, lay
from atom_operator.validation.parsing import parse_spec
from tests.support.operator.builders_operator import spec

_NAMES = st.sampled_from(["A", "B", "C"])
_VARIABLES = st.lists(
    st.builds(lambda name, value: {"name": name, "value": value}, _NAMES, st.sampled_from("12")),
    unique_by=lambda item: item["name"],
    max_size=3,
)
_LABELS = st.dictionaries(st.sampled_from(["team", "cost"]), st.sampled_from("xy"), max_size=2)


def _optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


_ENGINE = _optional(env=_VARIABLES)
_ROLLOUT = _optional(
    drainSeconds=st.integers(0, 9), strategy=st.sampled_from(["Surge", "Recreate"])
)
_OBJECTS = _optional(labels=_LABELS, service=_optional(labels=_LABELS))
_BOTH = _optional(
    engine=_ENGINE,
    rollout=_ROLLOUT,
    objects=_OBJECTS,
    serviceAccountName=st.sampled_from(["one", "two"]),
)


def _leaves(node: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if isinstance(node, list):
        node = {f"[{item['name']}]": item["value"] for item in node}
    if not isinstance(node, dict):
        return {path: node}
    return {
        place: value
        for name, child in node.items()
        for place, value in _leaves(child, (*path, name)).items()
    }


def _lay(above: dict[str, Any], below: dict[str, Any]) -> Laid:
    raw = {**spec(), **above}
    typed = parse_spec(raw)
    assert isinstance(typed, AtomDeploymentSpec)
    laid = lay(raw, typed, ("site", None), below)
    assert isinstance(laid, Laid), laid
    return laid


def _dumped(laid: Laid) -> dict[tuple[str, ...], Any]:
    written = laid.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    asked = {name: written[name] for name in _FIELDS if name in written}
    return _leaves(asked)


_FIELDS = ("engine", "rollout", "objects", "serviceAccountName")


@given(above=_BOTH, below=_BOTH)
def test_every_value_is_the_specs_or_else_the_profiles(
    above: dict[str, Any], below: dict[str, Any]
) -> None:
    laid = _lay(above, below)
    assert _dumped(laid) == {**_leaves(below), **_leaves(above)}
    given = {
        "".join(f".{part}" for part in path).replace(".[", "[")[1:]
        for path in _leaves(below).keys() - _leaves(above).keys()
    }
    assert laid.profile is not None
    assert set(laid.profile.fields) == given


@given(above=_BOTH, below=_BOTH)
def test_what_was_laid_stays_when_it_is_laid_again(
    above: dict[str, Any], below: dict[str, Any]
) -> None:
    once = _lay(above, below)
    written = once.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert _dumped(_lay(written, below)) == _dumped(once)


_CLAIM = {"claim": {}}
_PARTITIONS = {"claim": {"partition": "cpx_nps4"}}
_PLUGIN = {"resourceName": "amd.com/cpx_nps1"}


@pytest.mark.parametrize(
    ("above", "below", "joined", "fields"),
    [
        ({}, _CLAIM, _CLAIM, ["accelerator.claim"]),
        ({"product": "MI300X"}, _CLAIM, {"product": "MI300X", **_CLAIM}, ["accelerator.claim"]),
        (_CLAIM, _PARTITIONS, _PARTITIONS, ["accelerator.claim.partition"]),
        (_PARTITIONS, _CLAIM, _PARTITIONS, []),
        (_PLUGIN, _CLAIM, _PLUGIN, []),
        (_CLAIM, {**_PLUGIN, "preflight": True}, {**_CLAIM, "preflight": True}, None),
        ({"type": "cpu"}, _CLAIM, {"type": "cpu"}, []),
    ],
)
def test_of_two_ways_to_devices_the_specs_counts(
    above: dict[str, Any], below: dict[str, Any], joined: dict[str, Any], fields: list[str] | None
) -> None:
    laid = _lay({"accelerator": above} if above else {"accelerator": {}}, {"accelerator": below})
    accelerator = laid.spec.accelerator.model_dump(by_alias=True, exclude_unset=True)
    assert accelerator == joined
    assert laid.profile is not None
    assert list(laid.profile.fields) == (["accelerator.preflight"] if fields is None else fields)


def test_a_profile_has_one_way_to_devices() -> None:
    typed = parse_spec(spec())
    assert isinstance(typed, AtomDeploymentSpec)
    found = lay(spec(), typed, ("site", None), {"accelerator": {**_CLAIM, **_PLUGIN}})
    assert isinstance(found, tuple)
    assert "set claim (a DRA driver) or resourceName (a device plugin), not both" in str(found[0])
