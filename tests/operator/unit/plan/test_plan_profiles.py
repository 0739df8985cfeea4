"""`atom_operator plan` lays profiles below specs, wherever a file has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from atom_operator.__main__ import main
from atom_operator.constants import LABEL_PROFILE
from tests.support.in_memory_cluster.devices.device_claims import device_class, resource_slice
from tests.support.operator.builders_operator import atom_deployment

_ENV = {"env": [{"name": "SITE", "value": "x"}]}


def _profile(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.atom.dev/v1alpha1",
        "kind": "AtomProfile",
        "metadata": {"name": name},
        "spec": spec,
    }


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def to_file(name: str, *documents: Any) -> str:
        path = tmp_path / name
        path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
        return str(path)

    return to_file


def test_the_profile_of_a_file_is_named_with_its_fields(write: Any, capsys: Any) -> None:
    path = write("chat.yaml", atom_deployment())
    found = write("profiles.yaml", {"kind": "List", "items": [_profile("default", engine=_ENV)]})
    assert main(["plan", "-f", path, "--profile", found]) == 0
    assert "default, below the spec: engine.env[SITE]" in capsys.readouterr().out


def test_a_namespace_names_its_profile(write: Any, capsys: Any) -> None:
    path = write("chat.yaml", atom_deployment(), _profile("team", engine=_ENV))
    labels = {LABEL_PROFILE: "team"}
    namespace = {"kind": "Namespace", "metadata": {"name": "default", "labels": labels}}
    assert main(["plan", "-f", path, "--profile", write("site.yaml", namespace)]) == 0
    assert "team, below the spec: engine.env[SITE]" in capsys.readouterr().out


def test_the_defaults_of_the_charts_values_are_the_default_profile(write: Any, capsys: Any) -> None:
    path, values = write("chat.yaml", atom_deployment()), {"defaults": {"engine": _ENV}}
    assert main(["plan", "-f", path, "--values", write("values.yaml", values)]) == 0
    assert "default, below the spec: engine.env[SITE]" in capsys.readouterr().out


def test_a_profile_that_no_file_has_is_a_problem(write: Any, capsys: Any) -> None:
    path = write("chat.yaml", atom_deployment(profile="elsewhere"))
    assert main(["plan", "-f", path]) == 1
    assert "AtomProfile elsewhere, named by spec.profile, does not exist" in (
        capsys.readouterr().out.replace("\n", " ")
    )


def test_a_profile_that_is_wrong_is_a_problem(write: Any, capsys: Any) -> None:
    path = write("chat.yaml", atom_deployment(), _profile("default", engine={"image": "x"}))
    assert main(["plan", "-f", path]) == 1
    assert "InvalidProfile" in capsys.readouterr().out


def test_a_profiles_claim_counts_what_drivers_publish(write: Any, capsys: Any) -> None:
    """Without the profile the same nodes have no device at all."""
    spec = {"model": {"source": "hf://Qwen/Qwen3-8B"}, "accelerator": {"product": "MI300X"}}
    manifest = atom_deployment()
    manifest["spec"] = spec
    status = {
        "capacity": {"cpu": "128"},
        "allocatable": {"cpu": "128"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    node = {"kind": "Node", "metadata": {"name": "a"}, "status": status}
    fleet = write(
        "fleet.yaml",
        node,
        {"kind": "ResourceSlice", **resource_slice("a", 8)},
        {"kind": "DeviceClass", **device_class()},
    )
    path = write("chat.yaml", manifest)
    assert main(["plan", "-f", path, "--nodes", fleet]) == 1
    assert "no node of the cluster has AMD devices" in capsys.readouterr().out.replace("\n", " ")
    profile = write("site.yaml", _profile("default", accelerator={"claim": {}}))
    assert main(["plan", "-f", path, "--nodes", fleet, "--profile", profile]) == 0
    told = capsys.readouterr().out
    assert "default, below the spec: accelerator.claim" in told
    assert "deviceclass.resource.kubernetes.io/gpu.amd.com" in told
