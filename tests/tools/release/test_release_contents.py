"""What a release of one commit holds, and that the same commit makes the same bytes."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.release.keys import key_files
from tests.support.release.small_repository import commit, exported, git, small_repository
from tools.release import krew, recipes, signing
from tools.release.archives import sha256
from tools.release.contents import contents
from tools.release.errors import ReleaseError
from tools.release.provenance import Build
from tools.release.source import Source, export

DOWNLOADS = "https://files.test/atom/0.1.0"
BUILD = Build("https://ci.test/builder", "https://git.test/atom", {"python": "3"}, DOWNLOADS)
DIGEST = "sha256:" + "c" * 64
IMAGES = {
    "atom-operator": f"registry.test:5000/atom/atom-operator@{DIGEST}",
    "atom-engine-rocm": f"registry.test:5000/atom/atom-engine-rocm:0.1.0@{DIGEST}",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def source(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Source:
    return exported(repository, tmp_path_factory.mktemp("export") / "one")


@pytest.fixture(scope="module")
def private_key(tmp_path_factory: pytest.TempPathFactory) -> signing.PrivateKey:
    private, _ = key_files(tmp_path_factory.mktemp("keys"), "own", "secret")
    return signing.read_private_key(private, "secret")


@pytest.fixture(scope="module")
def files(source: Source, private_key: signing.PrivateKey) -> dict[str, bytes]:
    return contents(source, recipes.named_images(IMAGES), BUILD, private_key)


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {item.name: archive.extractfile(item) for item in archive.getmembers()}
        return {name: held.read() for name, held in found.items() if held is not None}


def test_the_same_commit_makes_the_same_bytes(
    repository: Path,
    files: dict[str, bytes],
    private_key: signing.PrivateKey,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From another clone, in another folder, with other file times and another mask of rights."""
    git(tmp_path, "clone", "--quiet", str(repository), "clone")
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    again = exported(tmp_path / "clone", tmp_path / "elsewhere")
    made = contents(again, recipes.named_images(IMAGES), BUILD, private_key)
    assert [name for name in made if made[name] != files.get(name)] == []
    assert made.keys() == files.keys()


def test_a_release_has_every_part_under_its_version(files: dict[str, bytes]) -> None:
    assert sorted(files) == [
        "SHA256SUMS",
        "SHA256SUMS.sig",
        "atom-crds-0.1.0.yaml",
        "atom-images-0.1.0.tar.gz",
        "atom-krew-0.1.0.yaml",
        "atom-operator-0.1.0.oci.tar",
        "atom-operator-0.1.0.tgz",
        "atom-platform-0.1.0.intoto.jsonl",
        "atom-platform-0.1.0.spdx.json",
        "atom_platform-0.1.0-py3-none-any.whl",
        "kubectl-atom-0.1.0.tar.gz",
        "release-notes.md",
    ]
    names = {item["metadata"]["name"] for item in yaml.safe_load_all(files["atom-crds-0.1.0.yaml"])}
    assert names == {"atomdeployments.serving.atom.dev", "atomprofiles.serving.atom.dev"}


def test_the_notes_are_the_changelogs_words_of_this_version(
    repository: Path, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "--quiet", str(repository), "clone")
    changes = tmp_path / "clone/CHANGELOG.md"
    changes.write_text("# Changelog\n\n## 0.1.0 (2026-12-01)\n- new\n\n## 0.0.9\n- old\n")
    commit(tmp_path / "clone")
    assert exported(tmp_path / "clone", tmp_path / "export").notes == "- new"


def test_images_of_a_builder_are_the_charts_defaults_by_digest(files: dict[str, bytes]) -> None:
    values = yaml.safe_load(members(files["atom-operator-0.1.0.tgz"])["atom-operator/values.yaml"])
    assert values["image"]["repository"] == "registry.test:5000/atom/atom-operator"
    assert values["image"]["digest"] == DIGEST
    assert values["defaultEngineImages"] == {"amd": IMAGES["atom-engine-rocm"], "cpu": ""}
    assert IMAGES["atom-operator"] in files["release-notes.md"].decode()


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ({"atom-operator": "registry.test/atom-operator:0.1.0"}, "no image by its digest"),
        ({"atom-operator": "registry.test/atom-operator@sha256:12"}, "no image by its digest"),
        ({"atom": f"registry.test/atom@{DIGEST}"}, "there are atom-operator, atom-engine-cpu"),
    ],
)
def test_an_image_without_its_digest_or_of_no_recipe_is_refused(
    image: dict[str, str], reason: str
) -> None:
    with pytest.raises(ReleaseError, match=reason):
        recipes.named_images(image)


def test_the_charts_oci_layout_holds_the_package_that_helm_takes(files: dict[str, bytes]) -> None:
    layout = members(files["atom-operator-0.1.0.oci.tar"])
    for name, blob in layout.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{sha256(blob)}"
    (index,) = json.loads(layout["index.json"])["manifests"]
    manifest = json.loads(layout["blobs/" + index["digest"].replace(":", "/")])
    assert manifest["config"]["mediaType"] == "application/vnd.cncf.helm.config.v1+json"
    (layer,) = manifest["layers"]
    packed = layout["blobs/" + layer["digest"].replace(":", "/")]
    assert packed == files["atom-operator-0.1.0.tgz"]
    config = json.loads(layout["blobs/" + manifest["config"]["digest"].replace(":", "/")])
    assert (config["name"], config["version"]) == ("atom-operator", "0.1.0")


def test_the_recipes_are_a_context_whose_images_name_version_and_commit(
    source: Source, files: dict[str, bytes]
) -> None:
    held = members(files["atom-images-0.1.0.tar.gz"])
    for recipe in recipes.RECIPES:
        text = held[f"atom-images-0.1.0/{recipe.dockerfile}"].decode()
        assert "ARG VERSION=0.1.0\n" in text
        assert f"ARG REVISION={source.commit}\n" in text
        assert "ARG CREATED=2026-11-01T11:00:00Z\n" in text
        assert f"atom-images-0.1.0/{recipe.lock}" in held


# The fields and the rules of kubernetes-sigs/krew: pkg/index/types.go, pkg/constants, and
# internal/index/validation/validate.go.
KREW_FIELDS = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"version", "shortDescription", "description", "caveats", "homepage", "platforms"},
    "platform": {"uri", "sha256", "selector", "files", "license", "bin"},
    "file": {"from", "to"},
}


def krew_problems(plugin: dict[str, Any]) -> Iterator[str]:
    spec = plugin["spec"]
    (platform,) = spec["platforms"]
    parts = {"": plugin, "spec": spec, "platform": platform, "file": platform["files"][0]}
    yield from (name for name in parts if set(parts[name]) - KREW_FIELDS[name])
    rules = {
        "apiVersion": plugin["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2",
        "kind": plugin["kind"] == "Plugin",
        "name": re.fullmatch(r"[\w-]+", plugin["metadata"]["name"]),
        "shortDescription": re.fullmatch(r"[^\r\n]+", spec["shortDescription"]),
        "version": re.fullmatch(r"v\d+\.\d+\.\d+([-+][\w.+-]+)?", spec["version"]),
        "uri": platform["uri"].startswith("https://"),
        "sha256": re.fullmatch(r"[a-f0-9]{64}", platform["sha256"]),
        "bin": platform["bin"],
        "files": all(each["from"] and each["to"] for each in platform["files"]),
        "selector": platform["selector"]["matchLabels"].keys() <= {"os", "arch"},
        "not empty": platform["selector"]["matchLabels"],
    }
    yield from (name for name, holds in rules.items() if not holds)


def test_the_krew_manifest_is_one_that_krew_takes_and_names_the_archive(
    files: dict[str, bytes],
) -> None:
    plugin = yaml.safe_load(files["atom-krew-0.1.0.yaml"])
    assert list(krew_problems(plugin)) == []
    assert (plugin["metadata"]["name"], plugin["spec"]["version"]) == ("atom", "v0.1.0")
    (platform,) = plugin["spec"]["platforms"]
    packed = files["kubectl-atom-0.1.0.tar.gz"]
    assert platform["uri"] == f"{DOWNLOADS}/kubectl-atom-0.1.0.tar.gz"
    assert platform["sha256"] == sha256(packed)
    wheel = "atom_platform-0.1.0-py3-none-any.whl"
    held = members(packed)
    assert held.keys() == {"kubectl-atom", "requirements.txt", "LICENSE", wheel}
    assert held[wheel] == files[wheel]
    assert "--hash=sha256:" in held["requirements.txt"].decode()
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        modes = {each.name: each.mode for each in archive.getmembers()}
    assert [name for name, mode in modes.items() if mode & 0o111] == [platform["bin"]]


def test_an_address_that_krew_does_not_take_is_refused(source: Source) -> None:
    with pytest.raises(ReleaseError, match="krew downloads by https:// alone"):
        krew.manifest(source, b"", "http://files.test")


def test_the_bill_of_materials_names_what_each_image_is_made_of(
    source: Source, files: dict[str, bytes]
) -> None:
    """Its form is checked by SPDX's own library as it is written."""
    bill = json.loads(files["atom-platform-0.1.0.spdx.json"])
    names = {item["SPDXID"]: item["name"] for item in bill["packages"]}
    for recipe in recipes.RECIPES:
        lock = (source.folder / recipe.lock).read_text()
        within = {
            names[item["relatedSpdxElement"]]
            for item in bill["relationships"]
            if item["relationshipType"] == "CONTAINS"
            and names[item["spdxElementId"]] == recipe.image
        }
        unconditional = set(re.findall(r"^([a-z0-9._-]+)==[^\s;]+ \\$", lock, re.MULTILINE))
        theirs = {
            name for name in unconditional if not re.match("torch|triton|nvidia-|cuda-", name)
        }
        assert theirs
        assert theirs <= within
        assert ("aiter" in within) == ("torch" not in within and "numpy" in within)
        assert "colorama" not in within, "what Windows alone needs"
    by_name = {item["name"]: item for item in bill["packages"]}

    assert "no image of it" in by_name["atom-engine-cpu"]["comment"]
    wheel = "atom_platform-0.1.0-py3-none-any.whl"
    assert by_name[wheel]["checksums"][0]["checksumValue"] == sha256(files[wheel])


def test_the_provenance_names_commit_bases_and_every_file(
    source: Source, files: dict[str, bytes], private_key: signing.PrivateKey
) -> None:
    name = "atom-platform-0.1.0.intoto.jsonl"
    said = json.loads(signing.open_envelope(private_key.public_key(), files[name], name))
    about = {item["name"]: item["digest"]["sha256"] for item in said["subject"]}
    others = {other for other in files if other not in (name, "SHA256SUMS", "SHA256SUMS.sig")}
    assert about.keys() == others | {"atom-operator"}
    definition = said["predicate"]["buildDefinition"]
    uris = [item.get("uri", "") for item in definition["resolvedDependencies"]]
    assert uris[0] == f"git+https://git.test/atom@{source.commit}"
    bases = {str(recipes.base_image(source, recipe)) for recipe in recipes.RECIPES}
    assert {uri for uri in uris if uri.startswith("docker://")} == {f"docker://{b}" for b in bases}
    assert said["predicate"]["runDetails"]["builder"]["id"] == "https://ci.test/builder"


def test_what_no_commit_has_is_not_released(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", str(repository), "clone")
    (tmp_path / "clone/engine/atom/more.py").touch()
    with pytest.raises(ReleaseError, match=r"changes that no commit has .*engine/atom/more\.py"):
        export(tmp_path / "clone", tmp_path / "export")


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("engine/atom/__init__.py", '"0.1.0"', '"0.2.0"'),
        ("charts/atom-operator/Chart.yaml", "version: 0.1.0", "version: 0.2.0"),
        ("charts/atom-operator/Chart.yaml", 'appVersion: "0.1.0"', 'appVersion: "0.2.0"'),
        ("CHANGELOG.md", "## 0.1.0", "## 0.2.0"),
    ],
)
def test_parts_of_several_versions_are_no_release(
    repository: Path, tmp_path: Path, file: str, before: str, after: str
) -> None:
    git(tmp_path, "clone", "--quiet", str(repository), "clone")
    path = tmp_path / "clone" / file
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    commit(tmp_path / "clone")
    with pytest.raises(ReleaseError, match=r"one version, and here .*0\.2\.0"):
        export(tmp_path / "clone", tmp_path / "export")


def test_another_version_than_the_wanted_one_is_not_made(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"the command says 1\.0\.0"):
        export(repository, tmp_path / "export", "1.0.0")
