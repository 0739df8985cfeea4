"""Command lines and manifests in the documents are taken by the parser and the schema.

A block of a shell is read line by line; what begins with `atom` goes through the real parser. A
block of YAML with nothing but a `spec`, or with our apiVersion, may be a part of a manifest: every
field in it has to be one of its kind's (the AtomDeployment's where none is said), with a value of
its type.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom.entrypoints.cli import build_parser
from atom_operator.api.crd import build_crd, build_profile_crd

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/guides").glob("*.md")]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ATOM = re.compile(r"(?:\.venv/bin/)?atom (?=serve|generate|bench)")
CRDS = {"AtomDeployment": build_crd, "AtomProfile": build_profile_crd}
ARGO_CD = {"ignoreDifferences"}  # fields of an Application's spec, which a guide shows by itself
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
            if found.group(1) == language:
                yield page.stem, found.group(2)


def commands() -> list[tuple[str, str]]:
    lines = [
        (page, line)
        for page, text in blocks("bash")
        for line in text.replace("\\\n", " ").splitlines()
    ]
    return [(page, line) for page, line in lines if ATOM.match(line)]


def specs() -> list[tuple[str, str, Any]]:
    found = []
    for page, text in blocks("yaml"):
        for document in yaml.safe_load_all(text):
            ours = isinstance(document, Mapping) and (
                list(document) == ["spec"]
                or str(document.get("apiVersion", "")).startswith("serving.atom.dev/")
            )
            if ours and not ARGO_CD & set(document["spec"]):
                kind = document.get("kind", "AtomDeployment")
                found.append((page, kind, document["spec"]))
    return found


def problems(path: str, value: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    """What the schema does not take, but for fields that are missing."""
    kind = TYPES.get(schema.get("type", ""))
    if kind is not None and not isinstance(value, kind):
        yield f"{path}: {value!r} is no {schema['type']}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if isinstance(value, Mapping) and "properties" in schema:
        for name, below in value.items():
            if name in schema["properties"]:
                yield from problems(f"{path}.{name}", below, schema["properties"][name])
            elif not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{path}.{name}: no such field"
    if isinstance(value, list) and "items" in schema:
        for index, below in enumerate(value):
            yield from problems(f"{path}[{index}]", below, schema["items"])


@pytest.mark.parametrize(("page", "line"), commands())
def test_a_command_line_is_taken(page: str, line: str) -> None:
    build_parser().parse_args(shlex.split(ATOM.sub("", line, count=1), comments=True))


@pytest.mark.parametrize(("page", "kind", "spec"), specs())
def test_a_manifest_has_fields_of_ours(page: str, kind: str, spec: Any) -> None:
    versions = CRDS[kind]()["spec"]["versions"]
    schema = versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert list(problems("spec", spec, schema)) == []


def test_there_is_something_to_look_at() -> None:
    assert len(commands()) >= 8
    assert len(specs()) >= 10


def test_a_field_that_is_none_is_found() -> None:
    schema = {"type": "object", "properties": {"replicas": {"type": "integer"}}}
    assert list(problems("spec", {"replica": 1, "replicas": "2"}, schema)) == [
        "spec.replica: no such field",
        "spec.replicas: '2' is no integer",
    ]
