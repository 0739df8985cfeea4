"""A dry run of a release: into a registry on this machine, and installed from what it holds.

The registry is crane's; helm and pip are the real ones. The chart is pulled and rendered here, and
installed on a cluster by tests/operator/live/test_published_chart.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from devcluster.programs.cosign import ensure_cosign
from devcluster.settings import REPOSITORY, read_settings
from tests.support.cluster.helm_chart import KUBE_VERSION
from tests.support.release.dry_run import crane_program, local_registry, release_of_checkout
from tests.support.release.keys import key_files
from tools.release import signing
from tools.release.provenance import PREDICATE
from tools.release.registry import Registry

pytestmark = pytest.mark.slow
DIGEST = "sha256:" + "d" * 64


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def crane() -> Path:
    return crane_program()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The registry of this run, with a path."""
    with local_registry(tmp_path_factory.mktemp("registry")) as port:
        yield f"localhost:{port}/atom"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return key_files(tmp_path_factory.mktemp("keys"), "own")


@pytest.fixture(scope="module")
def release(
    address: str, keys: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    operator = f"{address}/atom-operator@{DIGEST}"
    return release_of_checkout(tmp_path_factory.mktemp("release"), operator, keys)


@pytest.fixture(scope="module")
def pushed(crane: Path, address: str, release: Path, keys: tuple[Path, Path]) -> str:
    key = signing.read_private_key(keys[0], None)
    return Registry(crane, address).push_chart(release, key)


def test_helm_pulls_what_was_released_and_renders_its_images(
    address: str, release: Path, pushed: str, tmp_path: Path
) -> None:
    built = read_settings(os.environ).tools / "helm"
    helm = shutil.which("helm") or (str(built) if built.exists() else None)
    if helm is None:
        pytest.skip("no helm: python -m devcluster build makes one")
    chart = f"oci://{address}/charts/atom-operator"
    version = release.name
    run(helm, "pull", chart, f"--version={version}", "--plain-http", f"--destination={tmp_path}")
    pulled = tmp_path / f"atom-operator-{version}.tgz"
    assert pulled.read_bytes() == (release / pulled.name).read_bytes()
    rendered = run(helm, "template", "atom", str(pulled), f"--kube-version={KUBE_VERSION}")
    objects = [item for item in yaml.safe_load_all(rendered) if item]
    (operator,) = (item for item in objects if item["kind"] == "Deployment")
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"{address}/atom-operator@{DIGEST}"
    assert "CustomResourceDefinition" in {item["kind"] for item in objects}
    packed = run(helm, "package", str(REPOSITORY / "charts/atom-operator"), cwd=tmp_path)
    own = run("tar", "-tf", str(release / pulled.name)).split()
    assert sorted(own) == sorted(run("tar", "-tf", packed.split()[-1]).split())


def test_signature_and_provenance_lie_beside_the_chart(
    crane: Path, address: str, pushed: str, keys: tuple[Path, Path]
) -> None:
    """In the places and forms of cosign, and good for the caller's key."""
    public = signing.read_public_key(keys[1])
    repository, _, digest = pushed.partition("@")
    assert repository == f"{address}/charts/atom-operator"

    def beside(kind: str) -> tuple[dict[str, str], bytes]:
        name = f"{repository}:{digest.replace(':', '-')}.{kind}"
        (layer,) = json.loads(run(crane, "manifest", name))["layers"]
        blob = run(crane, "blob", f"{repository}@{layer['digest']}")
        return layer["annotations"], blob.encode()

    annotations, payload = beside("sig")
    signing.verify(public, payload, annotations["dev.cosignproject.cosign/signature"], "chart")
    assert json.loads(payload)["critical"]["image"]["docker-manifest-digest"] == digest
    annotations, envelope = beside("att")
    assert annotations["predicateType"] == PREDICATE
    said = json.loads(signing.open_envelope(public, envelope, "provenance"))
    assert digest in {f"sha256:{item['digest']['sha256']}" for item in said["subject"]}


GUIDE = REPOSITORY / "docs/guides/releases.md"
REFUSED = "invalid signature|accepted signatures do not match"


def checks_of_the_guide(version: str, key: Path, registry: str) -> list[list[str]]:
    """The commands with which the guide checks a release by cosign, filled in."""
    lines = re.findall(r"^cosign (verify.*?)(?: &&.*)?$", GUIDE.read_text(), re.MULTILINE)
    assert len(lines) == 3
    filled = {"release.pub": str(key), "REGISTRY": registry, "0.1.0": version}
    return [re.sub("|".join(filled), lambda m: filled[m[0]], line).split() for line in lines]


def test_cosign_itself_takes_them_for_the_callers_key_and_for_no_other(
    address: str, release: Path, pushed: str, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    assert pushed
    cosign = ensure_cosign(read_settings(os.environ))
    other = key_files(tmp_path, "other")[1]

    def refusal(command: list[str], folder: Path) -> str:
        home = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(
            [cosign, *command], cwd=folder, env=home, capture_output=True, text=True, check=False
        )
        return done.stderr if done.returncode else ""

    for command in checks_of_the_guide(release.name, keys[1], address):
        assert refusal(command, release) == ""
    for command in checks_of_the_guide(release.name, other, address):
        assert re.search(REFUSED, refusal(command, release)), command
    changed = shutil.copytree(release, tmp_path / "changed")
    (changed / "SHA256SUMS").write_text("another\n")
    blob = checks_of_the_guide(release.name, keys[1], address)[0]
    assert re.search(REFUSED, refusal(blob, changed))


def test_pip_installs_the_wheel_with_the_locks_versions(release: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "own")
    python = tmp_path / "own/bin/python"
    (wheel,) = release.glob("*.whl")
    lock = REPOSITORY / "requirements/operator.txt"
    install = (python, "-m", "pip", "install", "--quiet")
    run(*install, "--require-hashes", "--requirement", lock)
    run(*install, "--no-index", f"{wheel}[operator]")
    said = run(python, "-c", "import atom; print(atom.__version__)")
    assert said.strip() == release.name
    assert "plan" in run(tmp_path / "own/bin/kubectl-atom", "--help")
    run(python, "-m", "pip", "check")


def test_the_plug_in_of_krew_installs_itself_from_its_archive(
    release: Path, tmp_path: Path
) -> None:
    """As krew lays it out; the second run needs no package index."""
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    run("tar", "-xf", release / f"kubectl-atom-{release.name}.tar.gz", "-C", plugin)
    (tmp_path / "kubectl-atom").symlink_to(plugin / "kubectl-atom")
    home = {"XDG_DATA_HOME": str(tmp_path / "data"), "KUBECTL_ATOM_PYTHON": sys.executable}

    def said(**variables: str) -> str:
        line = [tmp_path / "kubectl-atom", "import", "vllm serve Qwen/Qwen3-8B"]
        done = subprocess.run(
            line, env=os.environ | home | variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "source: hf://Qwen/Qwen3-8B" in said()
    assert "kind: AtomDeployment" in said(PIP_INDEX_URL="http://127.0.0.1:9/simple")
