"""Locations of a model, as other projects write them, to spec.model.source. Pure.

Forms: KServe's storage URIs (kserve/kserve docs/model-serving/storage), KubeAI's url
(kubeai-project/kubeai api/k8s/v1/model_types.go), and --model of vLLM and SGLang: a hub id or a
folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from atom_operator.api.v1alpha1.lora import MODEL_PATTERN, SOURCE_PATTERN
from atom_operator.importing.results import Result, Setting, left

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_REVISION = re.compile(r"(hf://[^:@]+)[:@]([\w./-]+)")
_MODEL, _ADAPTER = re.compile(MODEL_PATTERN), re.compile(SOURCE_PATTERN)
_GIVE = "give --model SOURCE: hf://ORG/NAME, s3://BUCKET/PREFIX, pvc://CLAIM/FOLDER or oci://IMAGE"
_IN_IMAGE = (
    "a folder of the container is read from the engine's image; put the model on a claim "
    "(pvc://CLAIM/FOLDER) or into the image"
)
Mounts = Mapping[str, str]  # folder of a container → the location that is mounted there


def model_results(text: str, where: str, mounts: Mounts | None = None) -> Iterator[Result]:
    """Translate the location of a model. mounts: folders of the container whose location is
    known."""
    source = _normal(_through(text, mounts or {}))
    note = ""
    with_revision = _REVISION.fullmatch(source)
    if with_revision is not None:
        source = with_revision[1]
        yield Setting("model.revision", with_revision[2], where)
    if source.startswith("/"):
        source, note = f"path://{source}", _IN_IMAGE
    if _MODEL.fullmatch(source) and "/../" not in source:
        yield Setting("model.source", source, where, note)
    else:
        yield left(where, f"the location has no counterpart; copy the model, and {_GIVE}")


def served_name(text: str) -> str:
    """Return the name under which a server offers a model by default: its location without the
    scheme of the hub."""
    return text.removeprefix("hf://")


def adapter_source(text: str, mounts: Mounts | None = None) -> str | None:
    """Return the location of an adapter; None if it has no counterpart."""
    source = _normal(_through(text, mounts or {}))
    source = f"path://{source}" if source.startswith("/") else source
    return source if _ADAPTER.fullmatch(source) and "/../" not in source else None


def _normal(text: str) -> str:
    text = text.strip().rstrip("/")
    if text.startswith("oci+native://"):
        return text.replace("oci+native://", "oci://", 1)
    return f"hf://{text}" if _HUB_ID.fullmatch(text) else text


def _through(text: str, mounts: Mounts) -> str:
    """Follow a path of the container to the location that is mounted there."""
    for folder in sorted(mounts, key=len, reverse=True):
        inside = folder.rstrip("/")
        if text.rstrip("/") == inside or text.startswith(f"{inside}/"):
            rest = text[len(inside) :].strip("/")
            return "/".join(filter(None, (mounts[folder].rstrip("/"), rest)))
    return text
