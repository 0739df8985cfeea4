"""The platform on a cluster: which images, how the chart is installed, how the demo is applied.

What `make demo` and the end-to-end tests have in common. On the embedded cluster the images are
built here and the engine's libraries come from this checkout's environment by a read-only claim; on
a cluster of your own (CLUSTER=current) the images are those that OPERATOR_IMAGE and ENGINE_IMAGE
name, with everything inside.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from devcluster import target
from devcluster.images import project_images
from devcluster.images.build_image import content_key
from devcluster.target import Target
from tools import smollm2
from tools.kube import Kube, KubeError
from tools.node_folder import NodeFolder, offer

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "atom-operator"
OPERATOR_NAMESPACE = "atom-system"
_SITE_PACKAGES_MOUNT = "/host-venv/site-packages"  # images/engine/Dockerfile.cpu looks there
# Images built here keep their tags: what is in them must show in the pods, or a rebuilt image would
# change nothing that runs.
_CONTENT_ANNOTATION = "devcluster.atom.dev/image-content"
# The Python of the images' Debian base: a mounted environment must be of the same version.
IMAGE_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class DemoModel:
    """Describes what the demo serves. name: of the AtomDeployment and its example; question: asked
    at the end, about a picture if the model reads pictures; outlives_pods: whether the demo kills
    the pod that answers, in the end; fetch: of a model that is not in the image, the file. Its
    folder is the claim of the model's name, by which pods have it from this machine."""

    name: str
    question: str
    reads_pictures: bool = False
    fetch: Callable[[], Path] | None = None
    outlives_pods: bool = False

    @property
    def example(self) -> Path:
        return ROOT / "examples" / f"{self.name}.yaml"


ATOM_TINY = DemoModel("atom-tiny", "What is ATOM?", outlives_pods=True)
DEMO_MODELS = {
    model.name: model
    for model in (
        ATOM_TINY,
        DemoModel("atom-tiny-eyes", "What do you see?", reads_pictures=True),
        DemoModel("smollm2", "Why is the sky blue? Answer in one sentence.", fetch=smollm2.fetch),
    )
}


@dataclass(frozen=True, slots=True)
class Images:
    operator: str
    engine: str
    thin: bool  # the engine's libraries are mounted from this machine


def choose_images(chosen: Target, environ: Mapping[str, str]) -> Images:
    """Raises `KubeError` when a cluster of the user's own is to be used without images."""
    if not chosen.is_embedded:
        missing = [name for name in ("OPERATOR_IMAGE", "ENGINE_IMAGE") if not environ.get(name)]
        if missing:
            raise KubeError(
                f"CLUSTER=current needs {' and '.join(missing)}: images that your cluster can "
                f"pull, built from images/operator/Dockerfile and images/engine/Dockerfile.cpu"
            )
        return Images(environ["OPERATOR_IMAGE"], environ["ENGINE_IMAGE"], thin=False)
    if sys.version_info[:2] == IMAGE_PYTHON:
        return Images("localhost/atom-operator:dev", "localhost/atom-engine:thin", thin=True)
    return Images("localhost/atom-operator:dev", "localhost/atom-engine:runtime", thin=False)


def prepare_cluster() -> tuple[Kube, Images]:
    """A cluster that answers, with the images in it (built and loaded on the embedded one)."""
    chosen = target.resolve(os.environ)
    images = choose_images(chosen, os.environ)
    if chosen.is_embedded:
        devcluster("up")
        engine = "thin" if images.thin else "runtime"
        devcluster("images", "--only", f"{engine},operator", "--load")
    else:
        target.require_reachable(chosen)
    return Kube(chosen), images


def _content_of(image: str) -> str | None:
    """Hash what an image that we build is built from; None for an image that we do not build."""
    for request in project_images.REQUESTS.values():
        if request.tag == image:
            return content_key(request, base="")
    return None


def devcluster(*arguments: str) -> None:
    """Run the cluster tool with its progress on our terminal."""
    command = [sys.executable, "-m", "devcluster", *arguments]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise KubeError(f"python -m devcluster {' '.join(arguments)} failed; see above")


def install_operator(kube: Kube, images: Images) -> None:
    repository, _, tag = images.operator.rpartition(":")
    values = {
        "image.repository": repository,
        "image.tag": tag,
        "defaultEngineImages.cpu": images.engine,
    }
    content = _content_of(images.operator)
    if content is not None:
        values["podAnnotations." + _CONTENT_ANNOTATION.replace(".", "\\.")] = content
    kube.install_chart(values, namespace=OPERATOR_NAMESPACE, chart=CHART)


def offer_folders(kube: Kube, images: Images, model: DemoModel = ATOM_TINY) -> None:
    """Let the pods of a namespace have what they need of this machine: nothing where the image has
    its packages and the model."""
    if images.thin:
        offer(kube, site_packages())
    if model.fetch is not None:
        offer(kube, NodeFolder(model.name, model.fetch().parent))


def site_packages() -> NodeFolder:
    """Return the packages of this environment. Another checkout's are another claim, so that two of
    them can use one cluster."""
    path = sysconfig.get_paths()["purelib"]
    return NodeFolder(f"site-packages-{hashlib.sha256(path.encode()).hexdigest()[:8]}", Path(path))


def demo_manifest(images: Images, model: DemoModel = ATOM_TINY) -> str:
    """The example with this machine's image, and with the claim of its packages for a thin one."""
    manifest = yaml.safe_load(model.example.read_text(encoding="utf-8"))
    manifest["spec"].setdefault("engine", {})["image"] = images.engine
    template: dict[str, Any] = {}
    if images.thin:
        template["spec"] = _mount_of(site_packages().claim)
    content = _content_of(images.engine)
    if content is not None:
        template["metadata"] = {"annotations": {_CONTENT_ANNOTATION: content}}
    if template:
        manifest["spec"]["template"] = template
    return yaml.safe_dump(manifest, sort_keys=False)


def _mount_of(claim: str) -> dict[str, Any]:
    mount = {"name": "site-packages", "mountPath": _SITE_PACKAGES_MOUNT, "readOnly": True}
    source = {"claimName": claim, "readOnly": True}
    return {
        "containers": [{"name": "engine", "volumeMounts": [mount]}],
        "volumes": [{"name": "site-packages", "persistentVolumeClaim": source}],
    }
