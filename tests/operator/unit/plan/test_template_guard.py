"""What spec.template may not do: take the engine out, or rights that its author was not given."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atom_operator.api.pod_schema import fields_of
from atom_operator.children.restricted_pod import (
    ALLOWED_VOLUMES,
    FREE_CONTAINER_FIELDS,
    FREE_CONTEXT_FIELDS,
    FREE_POD_FIELDS,
    JUDGED_CONTAINER_FIELDS,
    JUDGED_CONTEXT_FIELDS,
    JUDGED_POD_FIELDS,
)
from atom_operator.domain import ATOM_DEPLOYMENT, ATOM_PROFILE, DEPLOYMENT
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


def _engine(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "engine", **fields}]}


def _on_one_node(**terms: Any) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": terms}}


_BY_NAME = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}


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
    TemplateFeature.VOLUMES: {"volumes": [{"name": "v", "nfs": {"server": "a", "path": "/"}}]},
    TemplateFeature.SECRETS: {"volumes": [{"name": "v", "secret": {"secretName": "of-others"}}]},
    TemplateFeature.PRIVILEGE_ESCALATION: _context(allowPrivilegeEscalation=True),
    TemplateFeature.ROOT_GROUP: {"securityContext": {"runAsGroup": 0}},
    TemplateFeature.MOUNT_PROPAGATION: _engine(
        volumeMounts=[{"name": "tmp", "mountPath": "/tmp", "mountPropagation": "Bidirectional"}]
    ),
    TemplateFeature.PROBE_HOST: _engine(livenessProbe={"httpGet": {"host": "10.0.0.1"}}),
    TemplateFeature.TOLERATIONS: {"tolerations": [{"operator": "Exists"}]},
    TemplateFeature.RUNTIME_CLASS: {"runtimeClassName": "kata"},
    TemplateFeature.OTHER_FIELDS: {"hostThing": True},
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
        TemplateFeature.NODE_NAME,
        _on_one_node(
            requiredDuringSchedulingIgnoredDuringExecution={"nodeSelectorTerms": [_BY_NAME]}
        ),
    ),
    (
        TemplateFeature.NODE_NAME,
        _on_one_node(
            preferredDuringSchedulingIgnoredDuringExecution=[{"weight": 1, "preference": _BY_NAME}]
        ),
    ),
    (TemplateFeature.TOLERATIONS, {"tolerations": [{"key": "", "operator": "Exists"}]}),
    (TemplateFeature.ROOT_GROUP, {"securityContext": {"supplementalGroups": [44, 0]}}),
    (TemplateFeature.ROOT_GROUP, {"securityContext": {"fsGroup": 0}}),
    (TemplateFeature.ROOT_GROUP, _context(runAsGroup=0)),
    (
        TemplateFeature.PROBE_HOST,
        _engine(lifecycle={"postStart": {"tcpSocket": {"host": "node", "port": 1}}}),
    ),
    (TemplateFeature.UNCONFINED, _context(seccompProfile={"type": "Complain"})),
    (TemplateFeature.CAPABILITIES, _context(capabilities={"add": ["NET_BIND_SERVICE", "CHOWN"]})),
    (TemplateFeature.OTHER_FIELDS, _context(mayDoMore=True)),
    (
        TemplateFeature.OTHER_FIELDS,
        _engine(volumeMounts=[{"mountPath": "/a", "name": "tmp", "x": 1}]),
    ),
    *(
        (TemplateFeature.SECRETS, overlay)
        for overlay in (
            _engine(envFrom=[{"secretRef": {"name": "of-others"}}]),
            _engine(
                env=[
                    {"name": "A", "valueFrom": {"secretKeyRef": {"name": "of-others", "key": "k"}}}
                ]
            ),
            {
                "volumes": [
                    {"name": "p", "projected": {"sources": [{"secret": {"name": "of-others"}}]}}
                ]
            },
            {
                "volumes": [
                    {"name": "c", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}}
                ]
            },
            {"initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "of-others"}}]}]},
        )
    ),
    (
        TemplateFeature.HOST_PATH,
        {"volumes": [{"name": "tmp", "$patch": "replace"}, {"name": "tmp", "hostPath": {}}]},
    ),
]


def reason_of(feature: TemplateFeature) -> str:
    """Return the reason of a refusal: an unknown field is most often a misspelt one."""
    return "InvalidSpec" if feature is TemplateFeature.OTHER_FIELDS else "TemplateForbidden"


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        (
            {"containers": [{"name": "engine", "livenesProbe": {}}]},
            "spec.template.spec.containers[0].livenesProbe: is no field of a pod; did you mean "
            "livenessProbe?",
        ),
        ({"node_selector": {"a": "b"}}, "did you mean nodeSelector?"),
        (_context(runAsUsr=1), "did you mean runAsUser?"),
        ({"volumes": [{"name": "v", "emptydir": {}}]}, "did you mean emptyDir?"),
        ({"noSuchField": 1}, "is no field of a pod; if this cluster's Kubernetes is newer"),
    ],
)
async def test_a_misspelt_field_is_told_once_with_the_name_that_was_meant(
    overlay: dict[str, Any], words: str
) -> None:
    cluster = cluster_with(template={"spec": overlay})
    await reconciler(cluster).reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
    assert words in accepted["message"]
    assert accepted["message"].count("is no field of a pod") == 1


@pytest.mark.parametrize("feature", TemplateFeature)
async def test_what_the_site_forbids_is_refused_by_its_name(feature: TemplateFeature) -> None:
    cluster = cluster_with(template={"spec": USES[feature]})
    await reconciler(cluster, site=Site(template_forbidden=frozenset({feature}))).reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", reason_of(feature))
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
    assert (accepted["status"], accepted["reason"]) == ("False", reason_of(feature))
    assert f"{feature.value} is not allowed here" in accepted["message"] or (
        "is no field of a pod" in accepted["message"]
    )


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


_HARMLESS: dict[str, dict[str, Any]] = {
    name: {"volumes": [{"name": "v", **volume}]}
    for name, volume in {
        "emptyDir": {"emptyDir": {"medium": "Memory"}},
        "configMap": {"configMap": {"name": "ca"}},
        "downwardAPI": {"downwardAPI": {"items": []}},
        "claim": {"persistentVolumeClaim": {"claimName": "big"}},
        "ephemeral": {"ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
        "csi": {"csi": {"driver": "secrets-store.csi.k8s.io", "readOnly": True}},
        "image": {"image": {"reference": "registry.test/data:1"}},
        "projected": {
            "projected": {
                "sources": [
                    {"serviceAccountToken": {"path": "token", "audience": "vault"}},
                    {"configMap": {"name": "ca"}},
                ]
            }
        },
    }.items()
} | {
    "toleration of a key": {"tolerations": [{"key": "gpus-only", "operator": "Exists"}]},
    "toleration of a value": {
        "tolerations": [{"key": "team", "value": "a", "effect": "NoExecute"}]
    },
    "labels of nodes": _on_one_node(
        requiredDuringSchedulingIgnoredDuringExecution={
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
            ]
        }
    ),
    "node selector": {"nodeSelector": {"kubernetes.io/hostname": "a"}},
    "group": {"securityContext": {"supplementalGroups": [44, 109]}},
    "priority class": {"priorityClassName": "high"},
    "propagation from the host": _engine(
        volumeMounts=[{"name": "tmp", "mountPath": "/tmp", "mountPropagation": "HostToContainer"}]
    ),
    "probe of the pod": _engine(livenessProbe={"tcpSocket": {"port": 8000}}),
    "capability of the standard": _context(capabilities={"add": ["NET_BIND_SERVICE"]}),
    "profile of the node": {
        "securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "a.json"}}
    },
    "sidecar": {"containers": [{"name": "side", "image": "registry.test/side:1"}]},
    "user": {"securityContext": {"runAsUser": 1000, "runAsGroup": 1000}},
    "dns": {"dnsConfig": {"nameservers": ["10.0.0.10"]}, "hostAliases": [{"ip": "10.0.0.1"}]},
    "pull secret": {"imagePullSecrets": [{"name": "registry"}]},
}


@pytest.mark.parametrize("name", _HARMLESS)
async def test_what_people_need_stands_by_default(name: str) -> None:
    cluster = cluster_with(template={"spec": _HARMLESS[name]})
    await reconciler(cluster).reconcile(KEY)
    assert condition(cluster, "Accepted")["reason"] == "OverlayInEffect", name


async def test_secrets_that_typed_fields_name_may_be_mounted_again() -> None:
    """Whoever may name them in a field of the spec has them already."""
    reference = {"secretKeyRef": {"name": "hub", "key": "token"}}
    mounted = {"volumes": [{"name": "v", "secret": {"secretName": "hub"}}]}
    for changes in (
        {"engine": {"env": [{"name": "A", "valueFrom": reference}]}},
        {"model": {"source": "hf://Qwen/Qwen3-0.6B", "tokenSecretRef": {"name": "hub"}}},
        {"engine": {"apiKeySecretRef": {"name": "hub", "key": "token"}}},
    ):
        cluster = cluster_with(**changes, template={"spec": mounted})
        await reconciler(cluster).reconcile(KEY)
        assert condition(cluster, "Accepted")["status"] == "True", changes


@pytest.mark.parametrize(
    ("value", "overlay"),
    [
        ("volumes/nfs", USES[TemplateFeature.VOLUMES]),
        ("secrets/of-others", USES[TemplateFeature.SECRETS]),
        ("capabilities/SYS_ADMIN", USES[TemplateFeature.CAPABILITIES]),
        ("runtimeClassName/kata", USES[TemplateFeature.RUNTIME_CLASS]),
        ("sysctls/a.b", USES[TemplateFeature.SYSCTLS]),
        ("otherFields/hostThing", USES[TemplateFeature.OTHER_FIELDS]),
    ],
)
async def test_a_site_allows_one_value_of_a_feature(value: str, overlay: dict[str, Any]) -> None:
    for allowed, status in ((value, "True"), (f"{value}x", "False")):
        site = OperatorSettings.from_env({"ATOM_OPERATOR_TEMPLATE_ALLOWED": allowed}).site
        cluster = cluster_with(template={"spec": overlay})
        await reconciler(cluster, site=site).reconcile(KEY)
        accepted = condition(cluster, "Accepted")
        assert accepted["status"] == status, allowed
        assert status == "True" or f" {value} to template.allowed" in accepted["message"]


def test_every_field_of_the_api_is_on_the_list_or_is_judged() -> None:
    """A field that a newer Kubernetes brings is allowed by a decision, and never by itself."""
    for types, lists in (
        (("PodSpec",), (FREE_POD_FIELDS, JUDGED_POD_FIELDS)),
        (("Container", "EphemeralContainer"), (FREE_CONTAINER_FIELDS, JUDGED_CONTAINER_FIELDS)),
        (("PodSecurityContext", "SecurityContext"), (FREE_CONTEXT_FIELDS, JUDGED_CONTEXT_FIELDS)),
    ):
        known = {name for each in types for name in fields_of(each)}
        assert known == lists[0] | lists[1]
        assert not lists[0] & lists[1]


@pytest.mark.parametrize("kind", sorted(set(fields_of("Volume")) - {"name", *ALLOWED_VOLUMES}))
async def test_a_volume_of_any_other_type_is_refused(kind: str) -> None:
    cluster = cluster_with(template={"spec": {"volumes": [{"name": "v", kind: {}}]}})
    await reconciler(cluster).reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert accepted["reason"] == "TemplateForbidden"
    assert f"spec.template.spec.volumes[v].{kind}: " in accepted["message"]


@pytest.mark.parametrize("feature", TemplateFeature)
async def test_jobs_take_no_right_either(feature: TemplateFeature) -> None:
    text = json.dumps(USES[feature]).replace('"name": "engine"', '"name": "prepare"')
    cluster = cluster_with(
        model={"source": "hf://Qwen/Qwen3-0.6B"},
        accelerator={"type": "cpu", "memory": "16Gi"},
        cache={"weights": {"claim": "models"}},
        jobs={"template": {"spec": json.loads(text)}},
    )
    await reconciler(cluster, site=Site(template_forbidden=frozenset({feature}))).reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert accepted["reason"] == reason_of(feature), accepted
    assert "spec.jobs.template.spec." in accepted["message"]


async def test_a_right_that_a_profile_asks_for_is_blamed_on_the_profile() -> None:
    cluster = cluster_with(template={"spec": {"nodeSelector": {"a": "b"}}})
    profile = {"template": {"spec": {"hostIPC": True}}}
    metadata = {"name": "default", "namespace": ""}
    cluster.create(ATOM_PROFILE, {"metadata": metadata, "spec": profile})
    await reconciler(cluster).reconcile(KEY)
    accepted = condition(cluster, "Accepted")
    assert accepted["reason"] == "TemplateForbidden"
    assert "AtomProfile default asks for spec.hostIPC" in accepted["message"]


async def test_a_container_that_says_nothing_gets_no_more_rights_than_its_parent() -> None:
    added = [{"name": "side", "image": "s"}, {"name": "other", "securityContext": {}}]
    cluster = cluster_with(template={"spec": {"containers": added}})
    await reconciler(cluster).reconcile(KEY)
    pod = cluster.find(DEPLOYMENT, "chat")["spec"]["template"]["spec"]
    rights = {
        item["name"]: item["securityContext"]["allowPrivilegeEscalation"]
        for item in pod["containers"]
    }
    assert rights == {"engine": False, "side": False, "other": False}


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
