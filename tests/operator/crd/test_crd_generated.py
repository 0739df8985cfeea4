"""The CRD files are what the models say, and keep Kubernetes' structural rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom_operator.api.crd import build_crd
from atom_operator.api.v1alpha1.common import memory_quantity, quantity_bytes
from tests.support.operator.status_shown import SHOWN_COLUMNS
from tools.generate_crds import CRDS, files, render


@pytest.mark.parametrize("path", files(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_files_are_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == files()[path], "run python -m tools.generate_crds"


@pytest.mark.parametrize("build", CRDS.values(), ids=CRDS)
def test_a_file_holds_what_is_built(build: Callable[[], dict[str, Any]]) -> None:
    assert yaml.safe_load(render(build())) == build()


def version() -> dict[str, Any]:
    return build_crd()["spec"]["versions"][0]  # type: ignore[no-any-return]


def test_the_default_printer_columns() -> None:
    shown = [
        item["name"].upper()
        for item in version()["additionalPrinterColumns"]
        if "priority" not in item
    ]
    assert tuple(shown) == SHOWN_COLUMNS


def test_scale_and_status_are_subresources() -> None:
    subresources = version()["subresources"]
    assert subresources["status"] == {}
    assert set(subresources["scale"]) == {
        "specReplicasPath",
        "statusReplicasPath",
        "labelSelectorPath",
    }


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


def test_every_node_is_typed_described_and_without_json_schema_leftovers() -> None:
    for path, node in nodes(version()["schema"]["openAPIV3Schema"]):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert not node.keys() & {"anyOf", "$ref", "$defs", "title", "const"}, path
        if path.startswith(".spec."):
            assert node.get("description") or path.endswith("[]"), path


def test_only_replicas_is_defaulted_at_the_top_of_the_spec() -> None:
    spec = version()["schema"]["openAPIV3Schema"]["properties"]["spec"]
    defaulted = [name for name, node in spec["properties"].items() if "default" in node]
    assert defaulted == ["replicas"]
    assert spec["required"] == ["model"]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *[("4Gi", 4 * 2**30), ("1.5G", 1_500_000_000), ("7", 7), ("3072Mi", 3 * 2**30)],
        *[("0.5Gi", 2**29), ("1Pi", 2**50), ("4e9", 4 * 10**9), ("1E3", 1000), ("2E", 2 * 10**18)],
        *[(".5Ki", 512), ("5.Ki", 5120), ("+1k", 1000), ("0.1Ki", 103), ("9e99", 2**63 - 1)],
    ],
)
def test_memory_quantities(text: str, size: int) -> None:
    assert quantity_bytes(text) == size
    assert quantity_bytes(memory_quantity(size)) == size


def test_a_quantity_that_is_none_is_refused() -> None:
    for text in ("lots", "", ".", "500m", "-1Gi", "1 Gi", "1KI", "1e", "1e999"):
        with pytest.raises(ValueError, match="4Gi"):
            quantity_bytes(text)
