"""spec.template is laid over the rendered pod template as kubectl's strategic merge would."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from atom_operator.children.overlay import OverlayError, merge_pod_template, overlay_paths
from atom_operator.children.template_removal import remove_fields

COMMAND: dict[str, Any] = {"exec": {"command": ["x"]}}
LIVE: dict[str, Any] = {"httpGet": {"path": "/live", "port": "http"}, "periodSeconds": 10}
LIVE_BY_COMMAND = {**COMMAND, "periodSeconds": 10}
STOP_BY_COMMAND = {"preStop": COMMAND}
BASE: dict[str, Any] = {
    "metadata": {"labels": {"app": "atom"}},
    "spec": {
        "containers": [
            {
                "name": "engine",
                "image": "atom:1",
                "args": ["--model", "x"],
                "env": [{"name": "HOME", "value": "/cache"}],
                "ports": [{"containerPort": 8000, "name": "http"}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                "livenessProbe": LIVE,
                "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "tolerations": [{"key": "amd.com/gpu", "operator": "Exists"}],
        "securityContext": {"runAsUser": 65532, "fsGroup": 65532},
    },
}


def merged(**spec: Any) -> dict[str, Any]:
    return merge_pod_template(BASE, {"spec": spec})["spec"]  # type: ignore[no-any-return]


def engine(**fields: Any) -> dict[str, Any]:
    container = merged(containers=[{"name": "engine", **fields}])["containers"][0]
    assert container["image"] == "atom:1"
    return container  # type: ignore[no-any-return]


def test_a_container_is_merged_by_name_and_others_are_added() -> None:
    result = merged(
        containers=[{"name": "sidecar", "image": "s:1"}, {"name": "engine", "tty": True}]
    )
    # In the order asked for, as the API server orders what a patch names.
    assert [item["name"] for item in result["containers"]] == ["sidecar", "engine"]
    assert result["containers"][1]["tty"] is True


@pytest.mark.parametrize(
    ("fields", "path", "expected"),
    [
        (
            {"volumeMounts": [{"name": "venv", "mountPath": "/venv"}]},
            "volumeMounts",
            [{"name": "venv", "mountPath": "/venv"}, {"name": "tmp", "mountPath": "/tmp"}],
        ),
        (
            {"volumeMounts": [{"name": "fast", "mountPath": "/tmp"}]},
            "volumeMounts",
            [{"name": "fast", "mountPath": "/tmp"}],
        ),
        (
            {"env": [{"name": "HOME", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]},
            "env",
            [{"name": "HOME", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
        ),
        ({"env": [{"name": "HOME", "$patch": "delete"}]}, "env", []),
        (
            {"ports": [{"containerPort": 8000, "protocol": "TCP", "hostPort": 80}]},
            "ports",
            [{"containerPort": 8000, "name": "http", "protocol": "TCP", "hostPort": 80}],
        ),
        ({"args": ["--help"]}, "args", ["--help"]),
        # Fields that exclude each other: the rendered one goes.
        ({"livenessProbe": {"exec": {"command": ["x"]}}}, "livenessProbe", LIVE_BY_COMMAND),
        ({"lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}, "lifecycle", STOP_BY_COMMAND),
        ({"livenessProbe": {"periodSeconds": 9}}, "livenessProbe", {**LIVE, "periodSeconds": 9}),
        ({"livenessProbe": {"$patch": "replace", **COMMAND}}, "livenessProbe", COMMAND),
        ({"args": ["--model", "y"], "$setElementOrder/args": []}, "args", ["--model", "y"]),
        ({"$deleteFromPrimitiveList/args": ["--model"]}, "args", ["x"]),
    ],
)
def test_lists_of_a_container_merge_by_their_keys(
    fields: dict[str, Any], path: str, expected: object
) -> None:
    assert engine(**fields)[path] == expected


def test_maps_merge_and_null_removes() -> None:
    assert merged(securityContext={"fsGroup": 7})["securityContext"] == {
        "runAsUser": 65532,
        "fsGroup": 7,
    }
    assert "securityContext" not in merged(securityContext=None)


def test_tolerations_are_added_once() -> None:
    added = [{"key": "team", "operator": "Exists"}, BASE["spec"]["tolerations"][0]]
    assert [item["key"] for item in merged(tolerations=added)["tolerations"]] == [
        "amd.com/gpu",
        "team",
    ]


def test_volumes_merge_by_name() -> None:
    result = merged(volumes=[{"name": "venv", "hostPath": {"path": "/opt"}}])
    assert [item["name"] for item in result["volumes"]] == ["venv", "tmp"]


def test_a_volume_of_another_source_loses_the_rendered_one() -> None:
    claim = {"claimName": "big"}
    result = merged(volumes=[{"name": "tmp", "persistentVolumeClaim": claim}])
    assert result["volumes"] == [{"name": "tmp", "persistentVolumeClaim": claim}]
    sized = merged(volumes=[{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}])
    assert sized["volumes"] == [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}]


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        ({"securityContext": {"$patch": "sideways"}}, "spec.securityContext.$patch must be merge"),
        ({"securityContext": {"$retain": []}}, "spec.securityContext.$retain is no directive"),
        ({"securityContext": {"$retainKeys": "all"}}, "spec.securityContext.$retainKeys must be"),
        ({"securityContext": {"$retainKeys": [], "fsGroup": 1}}, "must name every field here: fsG"),
        ({"$setElementOrder/volumes": "up"}, "spec.$setElementOrder/volumes must be a list"),
    ],
)
def test_a_directive_that_means_nothing_is_refused_by_name(
    overlay: dict[str, Any], words: str
) -> None:
    with pytest.raises(OverlayError, match=re.escape(words)):
        merged(**overlay)


@pytest.mark.parametrize(
    ("path", "gone"),
    [
        ("spec.securityContext.runAsUser", lambda t: "runAsUser" not in t["securityContext"]),
        ("spec.securityContext", lambda t: "securityContext" not in t),
        ("spec.volumes[tmp]", lambda t: t["volumes"] == []),
        ("spec.containers[engine].livenessProbe", lambda t: "livenessProbe" not in _first(t)),
        ("spec.containers[engine].livenessProbe.httpGet", lambda t: _first(t)["livenessProbe"]),
        ("spec.containers[engine].ports[8000].name", lambda t: "name" not in _first(t)["ports"][0]),
        ("spec.tolerations", lambda t: "tolerations" not in t),
        ("spec.nodeSelector[zone]", lambda t: True),  # not rendered: nothing to do
        ("spec.affinity.nodeAffinity", lambda t: True),
    ],
)
def test_a_path_takes_its_field_out(path: str, gone: Callable[[dict[str, Any]], Any]) -> None:
    before = copy.deepcopy(BASE)
    assert gone(remove_fields(BASE, [path])["spec"])
    assert before == BASE


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("spec.securityContex", "securityContex is no field here; there are"),
        ("spec.affinity.nodeAfinity", "nodeAfinity is no field here"),
        ("spec.containers[other].livenesProbe", "livenesProbe is no field here"),
        ("spec.tolerations[0]", "items of this list have no key"),
        ("spec[hostPID]", "chooses an item, and there is no list here"),
        ("spec.volumes[tmp", "is no path"),
        ("metadata.labels[app].x", "x is below a value that has no fields"),
    ],
)
def test_a_path_that_no_pod_has_is_refused_by_name(path: str, words: str) -> None:
    with pytest.raises(OverlayError, match=re.escape(words)) as error:
        remove_fields(BASE, ["metadata.labels[team]", path])
    assert str(error.value).startswith("spec.templateRemove[1] ")


def _first(pod_spec: dict[str, Any]) -> dict[str, Any]:
    return pod_spec["containers"][0]  # type: ignore[no-any-return]


def test_an_item_without_its_key_is_refused_by_name() -> None:
    with pytest.raises(OverlayError, match=r"an item of spec\.volumes lacks name"):
        merged(volumes=[{"emptyDir": {}}])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"containers": "many"}, "containers must be a list, got 'many'"),
        ({"volumes": {"name": "x"}}, "volumes must be a list"),
        ({"tolerations": "all"}, "tolerations must be a list"),
        ({"securityContext": [1]}, "securityContext must be no list"),
        ({"securityContext": "none"}, "securityContext must be an object, got 'none'"),
    ],
)
def test_a_value_of_another_shape_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(OverlayError, match=re.escape(words)):
        merged(**fields)
    assert overlay_paths({"spec": fields}) == (f"spec.{next(iter(fields))}",)


def test_the_paths_of_an_overlay_are_what_a_user_would_call_them() -> None:
    overlay = {
        "metadata": {"annotations": {"a": "b"}},
        "spec": {"containers": [{"name": "engine", "env": []}], "volumes": []},
    }
    assert overlay_paths(overlay) == (
        "metadata.annotations",
        "spec.containers[engine].env",
        "spec.volumes",
    )


SCALARS = st.integers() | st.text(max_size=4) | st.booleans()
TREES = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.recursive(SCALARS, lambda inner: st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)),
    max_size=3,
)


# How long an example takes to make says nothing about merging.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(base=TREES, overlay=TREES)
def test_merging_is_idempotent_and_leaves_its_inputs_alone(
    base: dict[str, Any], overlay: dict[str, Any]
) -> None:
    inputs = copy.deepcopy((base, overlay))
    try:
        once = merge_pod_template(base, overlay)
    except OverlayError:
        reject()  # an object where there is none, or the other way round
    assert merge_pod_template(once, overlay) == once
    assert (base, overlay) == inputs


@given(base=TREES)
def test_an_empty_overlay_changes_nothing(base: dict[str, Any]) -> None:
    assert merge_pod_template(base, {}) == base
