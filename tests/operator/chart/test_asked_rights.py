"""The rights that the chart gives for what is asked for alone, and the policy that bounds one."""

from __future__ import annotations

import pytest

from tests.operator.chart.test_chart import cluster_roles, only, render, roles


def written(helm: str, *options: str) -> set[str]:
    """The resources of roles that the operator's account may change."""
    rules = [
        rule
        for role in roles(render(helm, *options)).values()
        for rule in role["rules"]
        if "rbac.authorization.k8s.io" in rule["apiGroups"]
    ]
    rules += [
        rule
        for role in cluster_roles(render(helm, *options)).values()
        for rule in role["rules"]
        if "rbac.authorization.k8s.io" in rule["apiGroups"]
    ]
    return {
        name
        for rule in rules
        if {"create", "update", "patch", "delete"} & {*rule["verbs"]}
        for name in rule["resources"]
    }


@pytest.mark.parametrize("scope", ["watchNamespaces=null", "watchNamespaces={a,b}"])
def test_roles_are_written_only_where_pickers_are_wanted(helm: str, scope: str) -> None:
    assert written(helm, scope) == set()
    assert written(helm, scope, "endpointPicker.rights=true") == {"roles", "rolebindings"}


@pytest.mark.parametrize("scope", ["watchNamespaces=null", "watchNamespaces={a,b}"])
def test_a_policy_leaves_dry_runs_of_the_right_to_create_pods(helm: str, scope: str) -> None:
    documents = render(helm, scope)
    policy = only(documents, "ValidatingAdmissionPolicy")
    binding = only(documents, "ValidatingAdmissionPolicyBinding")
    assert binding["spec"] == {
        "policyName": policy["metadata"]["name"],
        "validationActions": ["Deny"],
    }
    account = only(documents, "ServiceAccount")["metadata"]
    (condition,) = policy["spec"]["matchConditions"]
    user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    assert condition["expression"] == f'request.userInfo.username == "{user}"'
    (rule,) = policy["spec"]["validations"]
    assert rule["expression"] == "has(request.dryRun) && request.dryRun == true"
    matched = policy["spec"]["matchConstraints"]["resourceRules"]
    assert [each["resources"] for each in matched] == [["pods"], ["resourceclaims"]]
    assert policy["spec"]["failurePolicy"] == "Fail"


def test_the_policy_is_left_out_where_it_is_unwanted(helm: str) -> None:
    kinds = {item["kind"] for item in render(helm, "dryRunPolicy.enabled=false")}
    assert "ValidatingAdmissionPolicy" not in kinds
