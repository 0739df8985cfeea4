"""The bill of materials: SPDX 2.3 in JSON, of the wheel, the chart and the images' recipes.

Names what the locks and Dockerfiles pin. What a base image has inside, and Debian packages that a
build installs, are of the built image, whose own bill its builder makes. Pure.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from license_expression import get_spdx_licensing
from spdx_tools.spdx.model import (
    Actor,
    ActorType,
    Checksum,
    ChecksumAlgorithm,
    CreationInfo,
    Document,
    ExternalPackageRef,
    ExternalPackageRefCategory,
    Package,
    PackagePurpose,
    Relationship,
    RelationshipType,
    SpdxNoAssertion,
)
from spdx_tools.spdx.writer.json.json_writer import write_document_to_stream

from tools.release import recipes
from tools.release.archives import sha256
from tools.release.recipes import RECIPES, Locked, Recipe, Reference
from tools.release.source import Source

_DOCUMENT = "SPDXRef-DOCUMENT"
_AITER = "https://github.com/ROCm/aiter"


def sbom(source: Source, made: Mapping[str, bytes], images: Mapping[str, Reference]) -> bytes:
    """Write the bill. made: files of the release by name; images: what a builder made."""
    document = Document(_creation(source))
    for name, data in sorted(made.items()):
        document.packages.append(_own_file(source, name, data))
        _relate(document, _DOCUMENT, RelationshipType.DESCRIBES, _id(name))
    packages: dict[str, Package] = {}
    for recipe in RECIPES:
        image = _image(source, recipe, images.get(recipe.image))
        document.packages.append(image)
        _relate(document, _DOCUMENT, RelationshipType.DESCRIBES, image.spdx_id)
        base = _base(recipes.base_image(source, recipe))
        packages[base.spdx_id] = base
        _relate(document, image.spdx_id, RelationshipType.DESCENDANT_OF, base.spdx_id)
        for part in _parts(source, recipe):
            packages[part.spdx_id] = part
            _relate(document, image.spdx_id, RelationshipType.CONTAINS, part.spdx_id)
    document.packages += [packages[name] for name in sorted(packages)]
    out = io.StringIO()
    write_document_to_stream(document, out, validate=True)
    return out.getvalue().encode() + b"\n"


def _creation(source: Source) -> CreationInfo:
    name = f"atom-platform-{source.version}"
    return CreationInfo(
        spdx_version="SPDX-2.3",
        spdx_id=_DOCUMENT,
        name=name,
        document_namespace=f"https://serving.atom.dev/spdx/{name}-{source.commit}",
        creators=[Actor(ActorType.TOOL, f"tools.release-{source.version}")],
        created=datetime.fromtimestamp(source.seconds, UTC).replace(tzinfo=None),
    )


def _own_file(source: Source, name: str, data: bytes) -> Package:
    return Package(
        spdx_id=_id(name),
        name=name,
        version=source.version,
        file_name=name,
        download_location=SpdxNoAssertion(),
        files_analyzed=False,
        checksums=[Checksum(ChecksumAlgorithm.SHA256, sha256(data))],
        license_declared=get_spdx_licensing().parse("Apache-2.0"),
        primary_package_purpose=PackagePurpose.ARCHIVE,
    )


def _image(source: Source, recipe: Recipe, built: Reference | None) -> Package:
    return Package(
        spdx_id=_id(recipe.image),
        name=recipe.image,
        version=source.version,
        comment=None if built else f"the recipe {recipe.dockerfile}; no image of it is released",
        download_location=SpdxNoAssertion(),
        files_analyzed=False,
        checksums=[_checksum(built)] if built else [],
        external_references=[_purl(_oci_purl(built))] if built else [],
        license_declared=get_spdx_licensing().parse("Apache-2.0"),
        primary_package_purpose=PackagePurpose.CONTAINER,
    )


def _base(found: Reference) -> Package:
    return Package(
        spdx_id=_id(f"{found.repository}-{found.tag}"),
        name=found.repository,
        version=found.tag,
        download_location=SpdxNoAssertion(),
        files_analyzed=False,
        checksums=[_checksum(found)],
        external_references=[_purl(_oci_purl(found))],
        primary_package_purpose=PackagePurpose.CONTAINER,
    )


def _parts(source: Source, recipe: Recipe) -> Iterator[Package]:
    for item in recipes.locked(source, recipe):
        yield _python_package(item)
    if recipe.base_brings_torch:
        commit = recipes.aiter_commit(source)
        yield Package(
            spdx_id="SPDXRef-aiter",
            name="aiter",
            version=commit,
            download_location=f"git+{_AITER}.git@{commit}",
            files_analyzed=False,
            external_references=[_purl(f"pkg:github/rocm/aiter@{commit}")],
            primary_package_purpose=PackagePurpose.LIBRARY,
        )


def _python_package(item: Locked) -> Package:
    return Package(
        spdx_id=_id(f"pypi-{item.name}-{item.version}"),
        name=item.name,
        version=item.version,
        download_location=SpdxNoAssertion(),  # any index that has the lock's hashes
        files_analyzed=False,
        external_references=[_purl(f"pkg:pypi/{item.name}@{item.version}")],
        primary_package_purpose=PackagePurpose.LIBRARY,
    )


def _oci_purl(found: Reference) -> str:
    name = found.repository.rpartition("/")[2]
    tag = f"&tag={found.tag}" if found.tag else ""
    digest = found.digest.replace(":", "%3A")
    return f"pkg:oci/{name}@{digest}?repository_url={found.repository}{tag}"


def _checksum(found: Reference) -> Checksum:
    return Checksum(ChecksumAlgorithm.SHA256, found.digest.removeprefix("sha256:"))


def _purl(locator: str) -> ExternalPackageRef:
    return ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", locator)


def _relate(document: Document, one: str, how: RelationshipType, other: str) -> None:
    document.relationships.append(Relationship(one, how, other))


def _id(name: str) -> str:
    return "SPDXRef-" + "".join(c if c.isalnum() or c in ".-" else "-" for c in name)
