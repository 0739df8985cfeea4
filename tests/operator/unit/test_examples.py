"""Every manifest of examples/ is accepted, planned and rendered, also by a real API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom.entrypoints.cli import build_parser
from atom.sizing import ModelFacts
from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, ObjectKey
from atom_operator.integration_values import Site
from atom_operator.kinds import LEADER_WORKER_SET
from atom_operator.plan.model_facts import facts_from_catalogue
from atom_operator.plan.volume_claims.pvc_access import mounted_claims
from atom_operator.reconcile.profiles.profile import Laid, lay
from atom_operator.validation.parsing import parse_spec
from tests.support.cluster.live_cluster import ROOT, LiveCluster
from tests.support.operator.builders_operator import reconciler
from tests.support.operator.fake_cluster import FakeCluster
from tools.on_cluster import DEMO_MODELS, DemoModel, Images, demo_manifest, site_packages

EXAMPLES = ROOT / "examples"
MANIFESTS = sorted(EXAMPLES.glob("*.yaml"))


def load(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def comment(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))


def test_there_are_examples() -> None:
    assert [path.name for path in MANIFESTS] == [
        "atom-tiny-eyes.yaml",
        "atom-tiny.yaml",
        "autoscaling-mi300x.yaml",
        "deepseek-r1-mi300x.yaml",
        "gateway-and-monitoring.yaml",
        "llama-3.1-8b-pvc.yaml",
        "llama-3.3-70b-mi355x.yaml",
        "llama-405b-multi-node.yaml",
        "qwen3-30b-a3b-mi300x.yaml",
        "qwen3-4b-partition.yaml",
        "qwen3-8b-claim.yaml",
        "qwen3-8b-mi300x.yaml",
        "qwen3-8b-prefill-decode.yaml",
        "qwen3-8b-whole-node.yaml",
        "smollm2.yaml",
        "traces.yaml",
    ]


def test_the_profile_of_the_examples_gives_what_their_devices_need() -> None:
    profile = load(EXAMPLES / "profiles" / "mi300x-site.yaml")
    assert (profile["kind"], profile["metadata"]["name"]) == ("AtomProfile", "default")
    for path in MANIFESTS:
        spec = load(path)["spec"]
        typed = parse_spec(spec)
        assert isinstance(typed, AtomDeploymentSpec), path
        laid = lay(spec, typed, ("default", None), profile["spec"])
        assert isinstance(laid, Laid), path
        on_gpus = typed.accelerator.type == "amd"
        assert laid.spec.accelerator.device_groups == ([109] if on_gpus else None), path
        assert laid.profile is not None
        assert "template.spec.tolerations" in laid.profile.fields


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
async def test_an_example_is_accepted_planned_and_rendered_for_images_that_can_do_it(
    path: Path,
) -> None:
    """Some examples ask for more than this repository's image can do: here a site announces it.
    What templates may ask for is bounded as everywhere. No engine is started."""
    manifest = load(path)
    manifest["metadata"]["namespace"] = "default"
    manifest["spec"].setdefault("replicas", 1)  # the schema's default
    cluster = FakeCluster()
    cluster.create(ATOM_DEPLOYMENT, manifest)
    name = manifest["metadata"]["name"]
    able = Site(
        engine_tensor_parallel=16,
        engine_multi_node=True,
        engine_architectures=("DeepseekV3ForCausalLM",),
    )
    await reconciler(cluster, site=able).reconcile(ObjectKey("default", name))
    status = cluster.find(ATOM_DEPLOYMENT, name)["status"]
    states = {item["type"]: item["status"] for item in status["conditions"]}
    assert (states["Accepted"], states["CapacityFits"]) == ("True", "True")
    assert status["capacity"]["maxSequences"] >= 1
    groups = (manifest["spec"].get("parallelism") or {}).get("nodes", 1) > 1
    fronted = bool({"frontend", "disaggregation"} & manifest["spec"].keys())
    beside = [f"{name}-frontend"] if fronted else []
    assert cluster.names(LEADER_WORKER_SET if groups else DEPLOYMENT) == [name, *beside]


@pytest.mark.parametrize("name", ["atom-tiny", "atom-tiny-eyes"])
def test_a_demo_model_in_the_catalogue_is_the_one_in_the_repository(name: str) -> None:
    text = (EXAMPLES / "models" / name / "config.json").read_text(encoding="utf-8")
    expected = ModelFacts.from_hf_config(json.loads(text))
    assert facts_from_catalogue(f"path:///models/{name}").facts == expected


@pytest.mark.cluster
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_the_api_server_accepts_an_example(live_cluster: LiveCluster, path: Path) -> None:
    live_cluster.kubectl("apply", "--dry-run=server", "--filename=-", manifest=load(path))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
async def test_an_example_that_this_versions_engine_refuses_says_so(path: Path) -> None:
    manifest = load(path)
    manifest["metadata"]["namespace"] = "default"
    manifest["spec"].setdefault("replicas", 1)
    cluster = FakeCluster()
    cluster.create(ATOM_DEPLOYMENT, manifest)
    name = manifest["metadata"]["name"]
    await reconciler(cluster).reconcile(ObjectKey("default", name))
    conditions = cluster.find(ATOM_DEPLOYMENT, name)["status"]["conditions"]
    (accepted,) = [item for item in conditions if item["type"] == "Accepted"]
    refused = accepted["status"] == "False"
    assert ("version does not" in comment(path)) == refused, accepted["message"]


async def test_traces_are_a_flag_and_variables_of_the_server() -> None:
    manifest = load(EXAMPLES / "traces.yaml")
    manifest["metadata"]["namespace"] = "default"
    cluster = FakeCluster()
    cluster.create(ATOM_DEPLOYMENT, manifest)
    await reconciler(cluster).reconcile(ObjectKey("default", "qwen3-8b-traced"))
    pod = cluster.find(DEPLOYMENT, "qwen3-8b-traced")["spec"]["template"]["spec"]
    (engine,) = [each for each in pod["containers"] if "--model" in each["args"]]
    words = engine["args"][engine["args"].index("--model") :]
    options = build_parser().parse_args(["serve", *words])
    assert options.otlp_traces_endpoint == "http://collector.observability:4318/v1/traces"
    asked = manifest["spec"]["engine"]["env"]
    assert [each for each in engine["env"] if each["name"].startswith("OTEL_")] == asked


@pytest.mark.parametrize("thin", [True, False], ids=["thin", "runtime"])
@pytest.mark.parametrize("model", DEMO_MODELS.values(), ids=lambda model: model.name)
async def test_what_the_demo_applies_is_allowed_under_every_sites_rules(
    model: DemoModel, thin: bool
) -> None:
    images = Images("localhost/atom-operator:dev", "localhost/atom-engine:made", thin)
    manifest = yaml.safe_load(demo_manifest(images, model))
    manifest["metadata"]["namespace"] = "default"
    manifest["spec"].setdefault("replicas", 1)
    cluster = FakeCluster()
    cluster.create(ATOM_DEPLOYMENT, manifest)
    await reconciler(cluster).reconcile(ObjectKey("default", model.name))
    rendered = cluster.find(DEPLOYMENT, model.name)
    pod = rendered["spec"]["template"]["spec"]
    claims = mounted_claims(pod)
    assert (site_packages().claim in claims) == thin
    assert (model.name in claims) == (model.fetch is not None)
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume], pod
    (engine,) = pod["containers"]
    assert engine["image"] == images.engine


async def test_this_versions_engine_runs_over_several_nodes() -> None:
    manifest = load(EXAMPLES / "llama-405b-multi-node.yaml")
    manifest["metadata"]["namespace"] = "default"
    manifest["spec"].setdefault("replicas", 1)
    cluster = FakeCluster()
    cluster.create(ATOM_DEPLOYMENT, manifest)
    await reconciler(cluster).reconcile(ObjectKey("default", "llama-405b"))
    accepted = cluster.find(ATOM_DEPLOYMENT, "llama-405b")["status"]["conditions"][0]
    assert (accepted["status"], accepted["reason"]) == ("True", "Valid")
    assert cluster.names(LEADER_WORKER_SET) == ["llama-405b"]
