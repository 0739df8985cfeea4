"""What spec.template may not do: take the engine out, or rights that its author was not given."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT
from atom_operator.integration_values import Site, TemplateFeature
from atom_operator.settings import OperatorSettings, SettingsError
from atom_operator.webhook.reviewer import faults_of
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    atom_deployment,
    cluster_with,
    condition,
    reconciler,
)

PRIVILEGED = {"name": "engine", "securityContext": {"privileged": True}}


def _context(**rights: Any) -> dict[str, Any]:
    return {"containers": [{"name": "engine", "securityContext": rights}]}


USES: dict[TemplateFeature, dict[str, Any]] = {
    TemplateFeature.SERVICE_ACCOUNT: {"serviceAccountName": "cluster-admin"},
    TemplateFeature.HOST_PID: {"hostPID": True},
    TemplateFeature.HOST_IPC: {"hostIPC": True},
    TemplateFeature.HOST_NETWORK: {"hostNetwork": True},
    TemplateFeature.PRIVILEGED: {"containers": [PRIVILEGED]},
    TemplateFeature.HOST_PATH: {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]},
    TemplateFeature.HOST_PORT: {
        "containers": [{"name": "engine", "ports": [{"containerPort": 8000, "hostPort": 80}]}]
    },
    TemplateFeature.CAPABILITIES: _context(capabilities={"add": ["SYS_ADMIN"]}),
    TemplateFeature.RUN_AS_ROOT: {"securityContext": {"runAsUser": 0}},
    TemplateFeature.UNCONFINED: {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
    TemplateFeature.SYSCTLS: {"securityContext": {"sysctls": [{"name": "a.b", "value": "1"}]}},
    TemplateFeature.NODE_NAME: {"nodeName": "mi300-7"},
    TemplateFeature.PRIORITY_CLASS: {"priorityClassName": "system-node-critical"},
}
# The same said otherwise.
FURTHER_USES: list[tuple[TemplateFeature, dict[str, Any]]] = [
    (TemplateFeature.SERVICE_ACCOUNT, {"serviceAccount": "cluster-admin"}),
    (TemplateFeature.PRIVILEGED, {"initContainers": [{**PRIVILEGED, "name": "first"}]}),
    (TemplateFeature.PRIVILEGED, {"ephemeralContainers": [{**PRIVILEGED, "name": "look"}]}),
    (TemplateFeature.PRIVILEGED, _context(windowsOptions={"hostProcess": True})),
    (TemplateFeature.RUN_AS_ROOT, _context(runAsUser=0)),
    (TemplateFeature.RUN_AS_ROOT, _context(runAsNonRoot=False)),
    (TemplateFeature.RUN_AS_ROOT, {"securityContext": {"runAsNonRoot": None}}),
    (TemplateFeature.RUN_AS_ROOT, {"securityContext": {"$patch": "delete"}}),
    (TemplateFeature.UNCONFINED, _context(procMount="Unmasked")),
    (TemplateFeature.UNCONFINED, {"securityContext": {"seccompProfile": None}}),
    (TemplateFeature.UNCONFINED, _context(seLinuxOptions={"type": "spc_t"})),
    (TemplateFeature.UNCONFINED, {"securityContext": {"seLinuxOptions": {"user": "root"}}}),
    (TemplateFeature.UNCONFINED, _context(appArmorProfile={"type": "Unconfined"})),
    (
        TemplateFeature.HOST_PATH,
        {"volumes": [{"name": "tmp", "$patch": "replace"}, {"name": "tmp", "hostPath": {}}]},
    ),
]


@pytest.mark.parametrize("feature", TemplateFeature)
async def test_what_the_site_forbids_is_refused_by_its_name(feature: TemplateFeature) -> None:
    cluster = cluster_with(template={"spec": USES[feature]})
    await reconciler(cluster, site=Site(template_forbidden=frozenset({feature}))).reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "TemplateForbidden")
    assert "spec.template.spec." in accepted["message"]
    assert feature.value in accepted["message"]
    assert cluster.names(DEPLOYMENT) == []


@pytest.mark.parametrize("feature", TemplateFeature)
async def test_what_the_site_allows_is_rendered(feature: TemplateFeature) -> None:
    cluster = cluster_with(template={"spec": USES[feature]})
    others = frozenset(TemplateFeature) - {feature}
    await reconciler(cluster, site=Site(template_forbidden=others)).reconcile(KEY)
    assert condition(cluster, "Accepted")["status"] == "True"


@pytest.mark.parametrize(("feature", "overlay"), FURTHER_USES)
async def test_it_is_refused_whichever_way_it_is_said(
    feature: TemplateFeature, overlay: dict[str, Any]
) -> None:
    cluster = cluster_with(template={"spec": overlay})
    await reconciler(cluster, site=Site(template_forbidden=frozenset({feature}))).reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "TemplateForbidden")
    assert f"{feature.value} is not allowed here" in accepted["message"]


async def test_app_armor_is_not_taken_off_by_its_older_annotation() -> None:
    name = "container.apparmor.security.beta.kubernetes.io/engine"
    for profile, status in (("unconfined", "False"), ("runtime/default", "True")):
        cluster = cluster_with(template={"metadata": {"annotations": {name: profile}}})
        await reconciler(cluster).reconcile(KEY)
        accepted = condition(cluster, "Accepted")
        assert accepted["status"] == status
        assert (f"spec.template.metadata.annotations[{name}]" in accepted["message"]) == (
            status == "False"
        )


async def test_annotations_of_jobs_take_no_right_either() -> None:
    name = "container.apparmor.security.beta.kubernetes.io/prepare"
    for profile, status in (("unconfined", "False"), ("runtime/default", "True")):
        cluster = cluster_with(
            model={"source": "hf://Qwen/Qwen3-0.6B"},
            accelerator={"type": "cpu", "memory": "16Gi"},
            cache={"weights": {"claim": "models"}},
            objects={"job": {"annotations": {name: profile}}},
        )
        await reconciler(cluster).reconcile(KEY)
        assert condition(cluster, "Accepted")["status"] == status


async def test_a_seccomp_profile_of_each_container_is_as_good_as_the_pods() -> None:
    profile = {"seccompProfile": {"type": "RuntimeDefault"}}
    template = {"securityContext": {"seccompProfile": None}, **_context(**profile)}
    cluster = cluster_with(template={"spec": template})
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Accepted")["status"] == "True"


async def test_an_se_linux_type_of_containers_is_no_right() -> None:
    options = {"type": "container_t", "level": "s0:c1,c2"}
    cluster = cluster_with(template={"spec": {"securityContext": {"seLinuxOptions": options}}})
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Accepted")["status"] == "True"


async def test_the_guard_against_root_cannot_be_taken_out() -> None:
    cluster = cluster_with(templateRemove=["spec.securityContext.runAsNonRoot"])
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Accepted")["reason"] == "TemplateForbidden"


async def test_a_user_id_can_be_taken_out_for_a_cluster_that_gives_them() -> None:
    paths = [f"spec.securityContext.{name}" for name in ("runAsUser", "runAsGroup", "fsGroup")]
    cluster = cluster_with(templateRemove=paths)
    await reconciler(cluster).reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("True", "OverlayInEffect")
    assert "spec.securityContext.runAsUser" in accepted["message"]
    template = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]
    assert set(template["spec"]["securityContext"]) == {"runAsNonRoot", "seccompProfile"}


def test_by_default_a_template_takes_no_rights_that_its_author_was_not_given() -> None:
    forbidden = OperatorSettings.from_env({}).site.template_forbidden
    assert forbidden == frozenset(TemplateFeature)
    some = {"ATOM_OPERATOR_TEMPLATE_ALLOWED": "hostPath, capabilities"}
    assert OperatorSettings.from_env(some).site.template_forbidden == forbidden - {
        TemplateFeature.HOST_PATH,
        TemplateFeature.CAPABILITIES,
    }
    allowed = {"ATOM_OPERATOR_TEMPLATE_FORBIDDEN": "hostPath, hostPID"}
    assert OperatorSettings.from_env(allowed).site.template_forbidden == frozenset(
        {TemplateFeature.HOST_PATH, TemplateFeature.HOST_PID}
    )
    with pytest.raises(SettingsError, match="telepathy"):
        OperatorSettings.from_env({"ATOM_OPERATOR_TEMPLATE_FORBIDDEN": "telepathy"})


@pytest.mark.parametrize(
    "overlay",
    [
        {"containers": [{"name": "engine", "$patch": "delete"}]},
        {"containers": None},
    ],
    ids=["by name", "with all"],
)
async def test_a_template_cannot_take_the_engine_out(overlay: dict[str, Any]) -> None:
    cluster = cluster_with(template={"spec": overlay})
    await reconciler(cluster).reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert accepted["status"] == "False"
    assert "container engine" in accepted["message"]
    assert cluster.names(DEPLOYMENT) == []
    manifest = atom_deployment(template={"spec": overlay})
    assert faults_of(KEY, manifest), "the webhook refuses it at once"


async def test_what_serves_goes_on_when_a_site_begins_to_forbid_it() -> None:
    cluster = cluster_with(template={"spec": {"hostIPC": True}})
    await reconciler(cluster, site=Site(template_forbidden=frozenset())).reconcile(KEY)
    finish_rollout(cluster)
    before = cluster.find(DEPLOYMENT, "chat")["metadata"]["resourceVersion"]
    strict = Site(template_forbidden=frozenset(TemplateFeature))
    await reconciler(cluster, site=strict).reconcile(KEY)
    assert condition(cluster, "Accepted")["status"] == "False"
    assert cluster.find(DEPLOYMENT, "chat")["metadata"]["resourceVersion"] == before
    assert cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["readyReplicas"] == 1
