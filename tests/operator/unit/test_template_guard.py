"""What spec.template may not do: take the engine out, or rights that its author was not given."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT
from atom_operator.integration_values import Site, TemplateFeature
from atom_operator.settings import OperatorSettings, SettingsError
from atom_operator.webhook.reviewer import faults_of
from tests.support.builders_operator import (
    KEY,
    atom_deployment,
    cluster_with,
    condition,
    reconciler,
)

PRIVILEGED = {"name": "engine", "securityContext": {"privileged": True}}
USES: dict[TemplateFeature, dict[str, Any]] = {
    TemplateFeature.SERVICE_ACCOUNT: {"serviceAccountName": "cluster-admin"},
    TemplateFeature.HOST_PID: {"hostPID": True},
    TemplateFeature.HOST_IPC: {"hostIPC": True},
    TemplateFeature.HOST_NETWORK: {"hostNetwork": True},
    TemplateFeature.PRIVILEGED: {"containers": [PRIVILEGED]},
    TemplateFeature.HOST_PATH: {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]},
}


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


def test_by_default_a_template_takes_no_other_account_and_nothing_of_the_host() -> None:
    forbidden = OperatorSettings.from_env({}).site.template_forbidden
    assert forbidden == frozenset(TemplateFeature) - {TemplateFeature.HOST_PATH}
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
    cluster.run_deployment_controller("chat")
    before = cluster.find(DEPLOYMENT, "chat")["metadata"]["resourceVersion"]
    strict = Site(template_forbidden=frozenset(TemplateFeature))
    await reconciler(cluster, site=strict).reconcile(KEY)
    assert condition(cluster, "Accepted")["status"] == "False"
    assert cluster.find(DEPLOYMENT, "chat")["metadata"]["resourceVersion"] == before
    assert cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["readyReplicas"] == 1
