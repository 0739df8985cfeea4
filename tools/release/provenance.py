"""Says of what and how a release was made: an in-toto statement with SLSA's provenance v1
(slsa.dev/spec/v1.0/provenance). Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.release import recipes
from tools.release.archives import sha256
from tools.release.recipes import RECIPES, Reference
from tools.release.source import Source

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "https://serving.atom.dev/release/v1"


@dataclass(frozen=True, slots=True)
class Build:
    """Facts of the build that its caller gives. builder: a URI for who runs it, whom readers trust
    or not; repository: a URI of where the commit is published; downloads: an address of where the
    files will be."""

    builder: str
    repository: str | None
    tools: Mapping[str, str]
    downloads: str | None = None


def statement(
    source: Source, subjects: Mapping[str, str], images: Mapping[str, Reference], build: Build
) -> bytes:
    """Write the statement; subjects: SHA-256 by name of everything that was made."""
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "version": source.version,
                "images": {name: str(found) for name, found in images.items()},
                **({"downloads": build.downloads} if build.downloads else {}),
            },
            "resolvedDependencies": _dependencies(source, build.repository),
        },
        "runDetails": {"builder": {"id": build.builder, "version": dict(build.tools)}},
    }
    said = {
        "_type": STATEMENT,
        "subject": [
            {"name": name, "digest": {"sha256": digest}}
            for name, digest in sorted(subjects.items())
        ],
        "predicateType": PREDICATE,
        "predicate": predicate,
    }
    return json.dumps(said, indent=1).encode() + b"\n"


def _dependencies(source: Source, repository: str | None) -> list[dict[str, Any]]:
    commit: dict[str, Any] = {"name": "source", "digest": {"gitCommit": source.commit}}
    if repository is not None:
        commit["uri"] = f"git+{repository}@{source.commit}"
    aiter = recipes.aiter_commit(source)
    bases = {str(recipes.base_image(source, recipe)) for recipe in RECIPES}
    locks = {recipe.lock for recipe in RECIPES} | {"images/build-requirements.txt"}
    return [
        commit,
        {
            "uri": f"git+https://github.com/ROCm/aiter.git@{aiter}",
            "digest": {"gitCommit": aiter},
        },
        *({"uri": f"docker://{base}", "digest": {"sha256": base.rpartition(":")[2]}}
          for base in sorted(bases)),
        *({"name": lock, "digest": {"sha256": sha256((source.folder / lock).read_bytes())}}
          for lock in sorted(locks)),
    ]  # fmt: skip


def subjects(statement_text: bytes) -> dict[str, str]:
    """SHA-256 by name of what a statement is about."""
    said = json.loads(statement_text)
    return {item["name"]: item["digest"]["sha256"] for item in said["subject"]}
