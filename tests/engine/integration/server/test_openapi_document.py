"""The OpenAPI document says something of everything, and each of its examples works as it stands.

Whoever adds an endpoint gives `body_of` an example, its route a summary and a description, and each
field a text: a request's in the docstring below it, an answer's in its `Meta`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.server_process import SERVED_NAME, ServerProcess, server_process

KEY = "sk-of-the-document"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
METHODS = {"get", "post", "put", "delete", "patch"}
Operation = tuple[str, str, dict[str, Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("document") / "model")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[ServerProcess]:
    folder = model.parent
    (folder / "template.jinja").write_text(TEMPLATE)
    flags = ["--chat-template", str(folder / "template.jinja"), "--api-key", KEY]
    flags += ["--torch-profiler-dir", str(folder / "traces"), "--max-model-len", "256"]
    flags += ["--enable-sleep-mode", "--enable-tokenizer-info-endpoint"]
    with server_process(model, folder / "log", *flags) as started:
        yield started.wait_ready()


@pytest.fixture(scope="module")
def document(server: ServerProcess) -> dict[str, Any]:
    answer = server.get("/openapi.json")  # as a browser does: without the key
    assert answer.status_code == 200, answer.text
    return answer.json()


def operations(document: dict[str, Any]) -> Iterator[Operation]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method in METHODS:
                yield method, path, operation


def properties(node: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property of every schema in the document, however deep."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from properties(item, f"{place}[{index}]")
    if isinstance(node, dict):
        found = node.get("properties")
        if isinstance(found, dict):
            yield from ((f"{place}.{name}", schema) for name, schema in found.items())
        for name, inner in node.items():
            yield from properties(inner, f"{place}.{name}" if place else name)


def test_every_field_of_every_schema_has_a_description(document: dict[str, Any]) -> None:
    found = list(properties(document))
    assert len(found) > 200
    mute = [place for place, schema in found if not schema.get("description", "").strip()]
    assert mute == [], "give these a text: a docstring below the field, or Meta(description=…)"


def test_every_operation_says_what_it_does_by_a_name_of_its_own(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        for part in ("summary", "description"):
            assert operation.get(part, "").strip(), f"{method} {path} has no {part}"
        assert operation["tags"], f"{method} {path} has no tag"
        for parameter in operation.get("parameters", ()):
            assert parameter["description"], (path, parameter["name"])
            assert parameter["example"], (path, parameter["name"])
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)
    told = {tag["name"] for tag in document["tags"]}
    assert {tag for _, _, each in operations(document) for tag in each["tags"]} <= told


def test_every_operation_has_an_example(document: dict[str, Any]) -> None:
    """Of its body; one without a body shows an answer."""
    for method, path, operation in operations(document):
        holder = operation.get("requestBody") or operation["responses"]["200"]
        (content,) = holder["content"].values()
        assert "example" in content, f"{method} {path} has no example"


def test_each_example_is_answered_as_the_document_says(
    server: ServerProcess, model: Path, document: dict[str, Any]
) -> None:
    root = document["servers"][0]["url"]
    headers = {"authorization": f"Bearer {KEY}"}
    with server.client() as client:
        for method, path, operation in operations(document):
            # This model generates, and has no adapters and no folder for batches:
            # tests/engine/{pooling,lora,stored_batches}.
            if {"pooling", "adapters", "batches"}.intersection(operation["tags"]):
                continue
            # It sleeps, so it exchanges no pages: tests/engine/integration/transfer.
            if path == "/kv_transfer_info":
                continue
            asked = {}
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "query":
                    asked[parameter["name"]] = parameter["example"]
                else:
                    path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
            sent = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            body = sent.get("example")
            if body is not None and "model_path" in body:  # a folder of who reads it
                body = {**body, "model_path": str(model)}
            url = root.rstrip("/") + path
            answer = client.request(method, url, json=body, headers=headers, params=asked)
            assert answer.status_code == 200, (method, path, answer.text)
            assert "x-ignored-fields" not in answer.headers, path
            _assert_described(answer, operation, document)


def _assert_described(
    answer: httpx.Response, operation: dict[str, Any], document: dict[str, Any]
) -> None:
    """The answer, and the answer that the document shows, fit the schema."""
    kind = answer.headers["content-type"].partition(";")[0]
    content = operation["responses"]["200"]["content"][kind]
    if kind == "application/json":
        schema = {"components": document["components"], **content["schema"]}
        bodies = [answer.json(), *([content["example"]] if "example" in content else [])]
        for body in bodies:
            jsonschema.validate(body, schema)


def test_the_examples_name_the_served_model(document: dict[str, Any]) -> None:
    post = document["paths"]["/v1/chat/completions"]["post"]
    example = post["requestBody"]["content"]["application/json"]["example"]
    assert example["model"] == SERVED_NAME


def test_the_document_says_which_key_is_needed_where(
    server: ServerProcess, document: dict[str, Any]
) -> None:
    (name,) = document["components"]["securitySchemes"]
    assert document["components"]["securitySchemes"][name]["scheme"] == "bearer"
    assert document["security"] == [{name: []}]
    with server.client() as client:
        for method, path, operation in operations(document):
            refused = client.request(method, path).status_code == 401
            assert refused == ("security" not in operation), path


def test_the_document_presents_itself(document: dict[str, Any]) -> None:
    assert document["info"]["description"].strip()
    assert document["servers"] == [{"url": "/", "description": "This server."}]
