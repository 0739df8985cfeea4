"""Every published field of every kind becomes a part of the manifest or a finding, and the manifest
is one that the API server and the operator accept."""

from __future__ import annotations

import contextlib
import random
from functools import cache
from itertools import product
from typing import Any

import pytest
import yaml

from atom_operator.importing.documents import deployments
from atom_operator.importing.engine_line import LineContext, line_results
from atom_operator.importing.render import Given, Rendered, render
from atom_operator.importing.results import Finding, Setting, TranslationError
from atom_operator.importing.rules import At
from atom_operator.served_schema.manifest import judge
from atom_operator.validation.parsing import parse_spec
from atom_operator.validation.rules import validate
from tests.support.peers import FLAG_LISTS, flags_of
from tests.support.peers.deployments import (
    LEAST,
    PUBLISHED,
    with_fields,
)

UNKNOWN = "does not know the field"


def imported(document: Any) -> Rendered:
    found, _ = deployments(yaml.safe_dump(document), "file")
    (only,) = [render(each, Given()) for each in found]
    assert judge(only.manifest).problems == ()
    spec = parse_spec(only.manifest["spec"])
    assert not isinstance(spec, tuple)
    assert validate(spec) == ()
    return only


@cache
def least(kind: str) -> Rendered:
    return imported(LEAST[kind])


def path_of(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


PLACES = [(kind, place) for kind, places in PUBLISHED.items() for place in places]


@pytest.mark.parametrize(("kind", "place"), PLACES)
def test_a_published_field_is_translated_or_reported(kind: str, place: str) -> None:
    for name, value in PUBLISHED[kind][place].items():
        found = imported(with_fields(kind, (place, name, value)))
        path = path_of(place, name)
        assert news(kind, found, path) or found.manifest != least(kind).manifest, path
        assert [each for each in found.findings if UNKNOWN in each.text] == []


def news(kind: str, found: Rendered, path: str) -> list[Finding]:
    """What is said about a field, or about the object that it is in."""
    before = least(kind).findings
    return [
        each
        for each in found.findings
        if each not in before and (each.where.startswith(path) or path.startswith(each.where))
    ]


@pytest.mark.parametrize("kind", LEAST)
def test_the_least_document_is_the_model_alone(kind: str) -> None:
    spec = dict(least(kind).manifest["spec"])
    assert spec.pop("model")["source"].startswith("hf://")
    assert spec == {}


@pytest.mark.parametrize(("kind", "place"), PLACES)
def test_a_field_that_no_version_has_is_reported_by_its_path(kind: str, place: str) -> None:
    found = imported(with_fields(kind, (place, "noSuchField", {"a": 1})))
    assert news(kind, found, path_of(place, "noSuchField"))


def drawn(kind: str, seed: int) -> Any:
    """A document with about half of the kind's fields."""
    choice = random.Random(seed)
    fields = [
        (place, name, value)
        for place, names in PUBLISHED[kind].items()
        for name, value in names.items()
        if choice.random() < 0.5
    ]
    return with_fields(kind, *fields)


@pytest.mark.parametrize("kind", LEAST)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.whole) for n in range(1, 40))]
)
def test_fields_together_are_accepted(kind: str, seed: int) -> None:
    imported(drawn(kind, seed))


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "place"), PLACES)
def test_a_value_of_a_wrong_type_is_an_error_or_a_finding(kind: str, place: str) -> None:
    values = (7, -1, True, "text", ["text"], [[]], {"a": {"b": 1}}, [{"a": 1}], "", [], {})
    for name, value in product(PUBLISHED[kind][place], values):
        with contextlib.suppress(TranslationError):
            imported(with_fields(kind, (place, name, value)))


@pytest.mark.parametrize("peer", FLAG_LISTS)
def test_every_flag_of_another_server_is_translated_or_reported(peer: str) -> None:
    context = LineContext("chat")
    for flag in flags_of(peer):
        for words in ([flag], [flag, "1"]):
            places = [At(f"word {n}", word) for n, word in enumerate(words)]
            found = list(line_results(places, context))
            assert found, flag
            for each in found:
                assert isinstance(each, Setting) or (isinstance(each, Finding) and each.text), flag


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        ("--max-model-len 32k", "engine.maxModelLen", 32_000),
        ("--max_model_len=4096", "engine.maxModelLen", 4096),
        ("--context-length 4096", "engine.maxModelLen", 4096),
        ("--tp 4", "parallelism.tensor", 4),
        ("--tensor-parallel-size=4", "parallelism.tensor", 4),
        ("--mem-fraction-static 0.8", "engine.gpuMemoryUtilization", 0.8),
        ("--max-running-requests 9", "engine.maxNumSeqs", 9),
        ("--no-enable-prefix-caching", "engine.prefixCaching", False),
        ("--disable-radix-cache", "engine.prefixCaching", False),
        ("--kv-cache-dtype fp8_e4m3", "engine.kvCacheDtype", "fp8"),
        ("--scheduling-policy prefill_first", "engine.schedulingPolicy", "prefillFirst"),
        ("--kv-offloading-size 8", "cache.kv.hostMemory", "8Gi"),
        ("--enable-expert-parallel", "parallelism.expert", True),
        ("--revision abc", "model.revision", "abc"),
        ("--lora-modules a=org/a", "adapters", [{"name": "a", "source": "hf://org/a"}]),
        ("--max-loras 3", "engine.lora.maxLoras", 3),
        ("--model s3://bucket/m/", "model.source", "s3://bucket/m"),
        ("--dtype half", "engine.extraArgs", ["--dtype", "half"]),
    ],
)
def test_a_flag_is_the_field_that_sets_the_option(words: str, path: str, value: Any) -> None:
    places = [At(f"word {n}", word) for n, word in enumerate(words.split())]
    found = line_results(places, LineContext("chat"))
    assert (path, value) in [(each.path, each.value) for each in found if isinstance(each, Setting)]
