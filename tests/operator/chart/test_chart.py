"""The chart, rendered by helm: rights, security contexts, the CRD, and values that are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from prometheus_client import generate_latest

from atom_operator.api.crd import build_crd, build_profile_crd
from atom_operator.integration_values import EngineFeature, Site, SiteAddresses, TemplateFeature
from atom_operator.metrics import OperatorMetrics
from atom_operator.settings import LeaseSettings, OperatorSettings, WebhookSettings
from tests.support.cluster import upstream_crds
from tests.support.cluster.helm_chart import CHART, KUBE_VERSION, objects_in, run_helm
from tests.support.cluster.live_cluster import ROOT, LiveCluster
from tests.support.cluster.promtool import assert_rules, metric_problems

NAME = "release-atom-operator"
HOST = f"{NAME}-webhook.atom-system.svc"


def render(helm: str, *values: str) -> list[dict[str, Any]]:
    flags = [flag for value in values for flag in ("--set", value)]
    result = run_helm(
        helm,
        "template",
        "release",
        str(CHART),
        "--namespace=atom-system",
        f"--kube-version={KUBE_VERSION}",
        *flags,
    )
    assert result.returncode == 0, result.stderr
    return objects_in(result.stdout)


def every(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


def only(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = every(documents, kind)
    return found


def test_lint_has_nothing_to_say(helm: str) -> None:
    result = run_helm(helm, "lint", str(CHART), "--strict")
    assert result.returncode == 0, result.stdout


def test_the_crds_are_the_generated_ones_and_are_kept(helm: str) -> None:
    crds = every(render(helm), "CustomResourceDefinition")
    for crd in crds:
        assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert crds == [build_crd(), build_profile_crd()]
    for removable in every(render(helm, "crds.keep=false"), "CustomResourceDefinition"):
        assert "annotations" not in removable["metadata"]
    kinds = [document["kind"] for document in render(helm, "crds.enabled=false")]
    assert "CustomResourceDefinition" not in kinds


def test_the_operator_pod_meets_the_restricted_standard(helm: str) -> None:
    pod = only(render(helm), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]


def roles(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = [item for item in documents if item["kind"] == "Role"]
    return {f"{item['metadata']['namespace']}/{item['metadata']['name']}": item for item in found}


def cluster_roles(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = [item for item in documents if item["kind"] == "ClusterRole"]
    return {item["metadata"]["name"]: item for item in found}


def test_the_webhook_can_never_block_an_apply(helm: str) -> None:
    (hook,) = only(render(helm), "ValidatingWebhookConfiguration")["webhooks"]
    assert (hook["failurePolicy"], hook["timeoutSeconds"]) == ("Ignore", 2)
    # Status, scale and deletions do not ask.
    reviewed = [(rule["resources"], rule["scope"]) for rule in hook["rules"]]
    assert reviewed == [(["atomdeployments"], "Namespaced"), (["atomprofiles"], "Cluster")]
    assert all(rule["operations"] == ["CREATE", "UPDATE"] for rule in hook["rules"])
    named = only(render(helm, "watchNamespaces={a,b}"), "ValidatingWebhookConfiguration")
    # Such an operator may not read profiles.
    assert [rule["scope"] for rule in named["webhooks"][0]["rules"]] == ["Namespaced"]
    (expression,) = named["webhooks"][0]["namespaceSelector"]["matchExpressions"]
    assert expression["values"] == ["a", "b"]


def test_the_service_leads_to_the_webhook_of_every_ready_replica(helm: str) -> None:
    documents = render(helm)
    hook = only(documents, "ValidatingWebhookConfiguration")["webhooks"][0]
    service = hook["clientConfig"]["service"]
    (found,) = [
        item
        for item in documents
        if item["kind"] == "Service" and item["metadata"]["name"] == service["name"]
    ]
    assert f"{service['name']}.{service['namespace']}.svc" == HOST
    (container,) = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    environ = {item["name"]: item.get("value") for item in container["env"]}
    assert (
        str(ports[found["spec"]["ports"][0]["targetPort"]])
        == (environ["ATOM_OPERATOR_WEBHOOK_PORT"])
    )
    assert container["readinessProbe"]["httpGet"]["port"] == "webhook"


def test_cert_manager_makes_the_certificate_where_it_is_asked_to(helm: str) -> None:
    documents = render(helm, "webhook.certManager.enabled=true")
    certificate = only(documents, "Certificate")
    assert certificate["spec"]["dnsNames"] == [HOST, f"{HOST}.cluster.local"]
    assert certificate["spec"]["issuerRef"]["name"] == only(documents, "Issuer")["metadata"]["name"]
    hook = only(documents, "ValidatingWebhookConfiguration")["metadata"]["annotations"]
    reference = f"atom-system/{certificate['metadata']['name']}"
    assert hook == {"cert-manager.io/inject-ca-from": reference}
    pod = only(documents, "Deployment")["spec"]["template"]["spec"]
    names = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
    assert names == [certificate["spec"]["secretName"]]
    environ = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
    folder = environ["ATOM_OPERATOR_WEBHOOK_CERTIFICATE_FOLDER"]
    assert folder in [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
    # Then the operator needs no right to any Secret.
    rules = [rule for role in roles(documents).values() for rule in role["rules"]]
    assert not any("secrets" in rule["resources"] for rule in rules)
    theirs = render(
        helm,
        "webhook.certManager.enabled=true",
        "webhook.certManager.issuerRef.kind=ClusterIssuer",
        "webhook.certManager.issuerRef.name=corporate",
    )
    assert "Issuer" not in [item["kind"] for item in theirs]
    assert only(theirs, "Certificate")["spec"]["issuerRef"]["name"] == "corporate"


def test_two_replicas_share_a_lease_and_are_kept_apart(helm: str) -> None:
    documents = render(helm)
    spec = only(documents, "Deployment")["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    pod = spec["template"]["spec"]
    keys = [item["topologyKey"] for item in pod["topologySpreadConstraints"]]
    assert keys == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    budget = only(documents, "PodDisruptionBudget")["spec"]
    assert budget["selector"] == spec["selector"]
    (container,) = pod["containers"]
    (lease,) = [item["value"] for item in container["env"] if item["name"].endswith("_LEASE")]
    create, named = roles(documents)["kube-system/release-atom-operator.atom-system-lease"]["rules"]
    assert create["verbs"] == ["create"]
    assert (named["resourceNames"], named["verbs"]) == ([lease], ["get", "update"])


def _lease(documents: list[dict[str, Any]]) -> tuple[str, str]:
    (container,) = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    environ = {item["name"]: item.get("value") for item in container["env"]}
    return environ["ATOM_OPERATOR_LEASE_NAMESPACE"], environ["ATOM_OPERATOR_LEASE"]


def test_two_releases_for_the_whole_cluster_share_one_lease(helm: str) -> None:
    """They would write over each other's children for ever; so only one of them leads."""
    one, other = (render(helm, f"fullnameOverride={name}") for name in ("one", "other"))
    assert _lease(one) == _lease(other) == ("kube-system", "atom-operator")
    for name, documents in (("one", one), ("other", other)):
        _, named = roles(documents)[f"kube-system/{name}.atom-system-lease"]["rules"]
        assert named["resourceNames"] == ["atom-operator"]


def test_releases_of_single_namespaces_have_a_lease_each(helm: str) -> None:
    documents = render(helm, "fullnameOverride=one", "watchNamespaces={a}")
    assert _lease(documents) == ("atom-system", "one")
    # Of the whole cluster's it only sees whether another release reconciles.
    (role,) = [role for name, role in roles(documents).items() if name.startswith("kube-system/")]
    assert role["rules"] == [
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": ["atom-operator"],
            "verbs": ["get"],
        }
    ]


def test_the_clusters_own_roles_may_use_atomdeployments(helm: str) -> None:
    """A tenant with `edit` in a namespace could not create one."""
    found = cluster_roles(render(helm))
    aggregate = "rbac.authorization.k8s.io/aggregate-to-"
    view, edit = found[f"{NAME}-view.atom-system"], found[f"{NAME}-edit.atom-system"]
    assert {name for name in view["metadata"]["labels"] if aggregate in name} == {
        f"{aggregate}view"
    }
    assert {name for name in edit["metadata"]["labels"] if aggregate in name} == {
        f"{aggregate}edit",
        f"{aggregate}admin",
    }
    assert "create" in edit["rules"][0]["verbs"]
    assert set(view["rules"][0]["verbs"]) == {"get", "list", "watch"}
    for role in (view, edit):
        assert {tuple(rule["apiGroups"]) for rule in role["rules"]} == {("serving.atom.dev",)}
        verbs = {rule["resources"][0]: rule["verbs"] for rule in role["rules"]}
        assert verbs["atomdeployments/status"] == ["get"], "the status is the operator's"
        assert verbs["atomprofiles"] == ["get", "list", "watch"], "profiles are the site's"
    assert f"{NAME}-edit.atom-system" not in cluster_roles(render(helm, "aggregatedRoles=false"))


def test_a_single_replica_has_no_disruption_budget_that_blocks_a_drain(helm: str) -> None:
    kinds = [document["kind"] for document in render(helm, "replicas=1")]
    assert "PodDisruptionBudget" not in kinds


def test_every_environment_variable_is_one_that_the_operator_reads(helm: str) -> None:
    documents = render(
        helm, "defaultEngineImages.amd=a:1", "defaultEngineImages.cpu=c:1", "watchNamespaces={a,b}"
    )
    (container,) = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    # The downward API gives the path of a field instead of a value.
    environ = {
        item["name"]: item.get("value") or item["valueFrom"]["fieldRef"]["fieldPath"]
        for item in container["env"]
    }
    assert OperatorSettings.from_env(environ) == OperatorSettings(
        engine_images={"amd": "a:1", "cpu": "c:1"},
        namespaces=("a", "b"),
        lease=LeaseSettings("atom-system", NAME, "metadata.name", "kube-system"),
        webhook=WebhookSettings(
            9443,
            hosts=(HOST, f"{HOST}.cluster.local"),
            namespace="metadata.namespace",
            secret="release-atom-operator-webhook",
            configuration=f"{NAME}.atom-system",
        ),
        site=Site(addresses=SiteAddresses(operator_namespace="metadata.namespace")),
    )


def test_what_the_site_sets_reaches_the_operator(helm: str) -> None:
    documents = render(
        helm,
        "engine.maxTensorParallel=16",
        "engine.multiNode=true",
        "engine.architectures={DeepseekV3ForCausalLM,GptOssForCausalLM}",
        "engine.features={expertParallel,speculation}",
        "template.forbidden={hostPath}",
        "autoscaling.prometheusAddress=http://prometheus.test:9090",
        "runbookBaseUrl=https://runbooks.test",
    )
    (container,) = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    environ = {item["name"]: item["value"] for item in container["env"] if "value" in item}
    del environ["ATOM_OPERATOR_LEASE"], environ["ATOM_OPERATOR_WEBHOOK_PORT"]
    assert OperatorSettings.from_env(environ).site == Site(
        addresses=SiteAddresses("http://prometheus.test:9090", "https://runbooks.test"),
        engine_tensor_parallel=16,
        engine_multi_node=True,
        engine_architectures=("DeepseekV3ForCausalLM", "GptOssForCausalLM"),
        engine_features=frozenset({EngineFeature.EXPERT_PARALLEL, EngineFeature.SPECULATION}),
        template_forbidden=frozenset({TemplateFeature.HOST_PATH}),
    )


def test_rights_of_templates_are_added_without_writing_the_whole_list(helm: str) -> None:
    for values, forbidden in (
        ([], frozenset(TemplateFeature)),
        (
            ["template.allowed={hostPath,volumes/nfs}"],
            frozenset(TemplateFeature) - {TemplateFeature.HOST_PATH},
        ),
        (["template.forbidden={hostPID}"], frozenset({TemplateFeature.HOST_PID})),
    ):
        documents = render(helm, *values)
        (container,) = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
        environ = {item["name"]: item["value"] for item in container["env"] if "value" in item}
        chosen = {k: v for k, v in environ.items() if k.startswith("ATOM_OPERATOR_TEMPLATE")}
        site = OperatorSettings.from_env(chosen).site
        assert site.template_forbidden == forbidden, values
        nfs = TemplateFeature.VOLUMES not in forbidden or "template.allowed" in str(values)
        assert site.allows(TemplateFeature.VOLUMES, "nfs") == nfs


def test_the_operators_alerts_name_its_own_metrics(helm: str) -> None:
    documents = render(helm, "metrics.alerts.enabled=true", "metrics.serviceMonitor.enabled=true")
    assert only(documents, "ServiceMonitor")["spec"]["endpoints"][0]["port"] == "metrics"
    (group,) = only(documents, "PrometheusRule")["spec"]["groups"]
    registry = OperatorMetrics().registry
    known = {sample.name for family in registry.collect() for sample in family.samples}
    known |= {f"{family.name}_total" for family in registry.collect() if family.type == "counter"}
    for rule in group["rules"]:
        metrics = set(re.findall(r"atom_operator_\w+", rule["expr"]))
        assert metrics, rule["alert"]
        assert metrics <= known
        assert (ROOT / rule["annotations"]["runbook"]).exists()


def test_prometheus_itself_takes_the_operators_alerts(helm: str, tmp_path: Path) -> None:
    documents = render(helm, "metrics.alerts.enabled=true")
    (group,) = only(documents, "PrometheusRule")["spec"]["groups"]
    assert_rules(group["rules"], tmp_path)


def test_promtool_has_nothing_to_say_of_the_operators_metrics() -> None:
    metrics = OperatorMetrics()
    metrics.request("patch", "Deployment")
    metrics.review("allowed")
    assert metric_problems(generate_latest(metrics.registry).decode()) == set()


def test_the_operator_reads_no_secrets_and_has_no_right_to_everything(helm: str) -> None:
    documents = render(helm)
    for name, role in cluster_roles(documents).items():
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"], name
            if "secrets" in rule["resources"]:  # those of peers are made, and never read
                assert (rule["resources"], rule["verbs"]) == (["secrets"], ["create"]), name
    # Its own certificate's, by name.
    own = roles(documents)["atom-system/release-atom-operator-own"]["rules"]
    readable = [rule for rule in own if rule["resources"] == ["secrets"] and "get" in rule["verbs"]]
    assert [rule["resourceNames"] for rule in readable] == [["release-atom-operator-webhook"]]


def test_named_namespaces_get_roles_and_no_cluster_role(helm: str) -> None:
    documents = render(helm, "watchNamespaces={a,b}", "webhook.enabled=false")
    kinds = [document["kind"] for document in documents]
    assert "ClusterRole" not in kinds
    assert "ClusterRoleBinding" not in kinds
    found = roles(documents)
    assert list(found) == [
        f"a/{NAME}.atom-system",
        f"b/{NAME}.atom-system",
        f"atom-system/{NAME}.atom-system-lease",
        f"atom-system/{NAME}.atom-system-lease-reader",
        f"kube-system/{NAME}.atom-system-cluster-lease",
    ]
    everywhere = cluster_roles(render(helm))[f"{NAME}.atom-system"]["rules"]
    # Of what is in no namespace, and of claims, which say nothing without the devices.
    without = (
        ["nodes"],
        ["persistentvolumes"],
        ["namespaces"],
        ["atomprofiles"],
        ["atomprofiles/status"],
        ["resourceslices", "resourceclaims", "deviceclasses"],
    )
    expected = [rule for rule in everywhere if rule["resources"] not in without]
    assert found[f"a/{NAME}.atom-system"]["rules"] == expected


def test_a_digest_wins_over_a_tag(helm: str) -> None:
    digest = "sha256:" + "0" * 64
    documents = render(helm, "image.repository=r/o", "image.tag=v1", f"image.digest={digest}")
    (container,) = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"r/o@{digest}"


@pytest.mark.parametrize(
    "value",
    [
        "typo=1",
        "image.taag=x",
        "workers=0",
        "engine.maxTensorParallel=0",
        "engine.features={flight}",
        "engine.architectures={Not a name}",
        "autoscaling.prometheusAddress=prometheus:9090",
        "replicas=0",
        "webhook.timeoutSeconds=60",
        "webhook.failurePolicy=Fail",
        "logLevel=LOUD",
        "watchNamespaces={Not_A_Name}",
        "image.digest=sha256:short",
        "resources.limit.memory=1Gi",
    ],
)
def test_a_wrong_value_is_refused(helm: str, value: str) -> None:
    result = run_helm(
        helm, "template", "release", str(CHART), f"--kube-version={KUBE_VERSION}", "--set", value
    )
    assert result.returncode != 0
    assert "schema" in result.stderr


FREE_FORM = {
    "commonLabels",
    "podSecurityContext",
    "securityContext",
    "labels",
    "annotations",
    "podAnnotations",
    "podLabels",
    "nodeSelector",
    "affinity",
}
FREE_FORM |= {"requests", "limits"}  # resource names are the cluster's


def typed_groups(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of the mappings in values.yaml whose keys are ours."""
    yield path
    for key, value in values.items():
        if isinstance(value, dict) and key not in FREE_FORM:
            yield from typed_groups(value, (*path, key))


def test_an_unknown_key_is_refused_at_every_level() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    validator = jsonschema.Draft7Validator(schema)
    validator.validate(yaml.safe_load(text))
    paths = list(typed_groups(yaml.safe_load(text)))
    assert ("metrics", "serviceMonitor") in paths
    for path in paths:
        values = yaml.safe_load(text)
        group = reduce(lambda node, key: node[key], path, values)
        group["typo"] = 1
        errors = [error.validator for error in validator.iter_errors(values)]
        assert errors == ["additionalProperties"], path


def test_the_readme_names_every_value() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    readme = Path(CHART / "README.md").read_text(encoding="utf-8")
    missing = [key for key in values if f"`{key}" not in readme]
    assert missing == ["nameOverride", "fullnameOverride"]


@pytest.mark.cluster
def test_the_api_server_accepts_every_manifest(helm: str, namespaced: LiveCluster) -> None:
    documents = render(helm, "crds.enabled=false", f"watchNamespaces={{{namespaced.namespace}}}")
    for document in documents:
        # A hook runs in an installed release: its ServiceAccount is not there in a dry run.
        if "helm.sh/hook" in document["metadata"].get("annotations", {}):
            continue
        document["metadata"]["namespace"] = namespaced.namespace
        namespaced.kubectl("apply", "--dry-run=server", "--filename=-", manifest=document)


@pytest.mark.cluster
def test_cert_managers_own_schema_accepts_what_is_asked_of_it(
    helm: str, namespaced: LiveCluster
) -> None:
    upstream_crds.install(namespaced)
    documents = render(helm, "crds.enabled=false", "webhook.certManager.enabled=true")
    asked = [item for item in documents if item["apiVersion"].startswith("cert-manager.io/")]
    assert {item["kind"] for item in asked} == {"Certificate", "Issuer"}
    for document in asked:
        document["metadata"]["namespace"] = namespaced.namespace
        result = namespaced.kubectl(
            "apply", "--dry-run=server", "--validate=strict", "--filename=-", manifest=document
        )
        assert "unknown field" not in result.stderr
