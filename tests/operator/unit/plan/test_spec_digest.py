"""The digest of what a spec asks of its pods is the same in every version of the operator."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.plan.spec_digest import spec_digest
from tests.support.operator.builders_operator import parsed

IMAGE = "registry.test/atom:1"


def digest(image: str = IMAGE, config_text: str | None = None, **changes: Any) -> str:
    return spec_digest(parsed(**changes), image, config_text)


def test_its_form_never_changes() -> None:
    """Another value here restarts every pod in the field at the upgrade that brings it."""
    spec = parsed(
        model={"source": "hf://Qwen/Qwen3-8B", "revision": "main"},
        engine={"gpuMemoryUtilization": 0.85, "extraArgs": ["--a"], "env": [{"name": "A"}]},
        accelerator={"type": "amd", "product": "MI300X"},
        rollout={"strategy": "Surge", "drainSeconds": 30},
        template={"spec": {"nodeSelector": None}},
        replicas=3,
    )
    assert spec_digest(spec, IMAGE, None) == "660dc7bcc2fde4f8"


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": 7},
        {"autoscaling": {"maxReplicas": 4}},
        {"monitoring": {"podMonitor": {}}},
        {"networkPolicy": {}},
        {"engine": {}},
        {"rollout": {}},
        {
            "rollout": {
                "strategy": "Recreate",
                "progressDeadlineSeconds": 60,
                "autoRollback": False,
            }
        },
    ],
    ids=str,
)
def test_what_no_pod_notices_does_not_count(changes: dict[str, Any]) -> None:
    assert digest(**changes) == digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"image": "registry.test/atom:2"},
        {"config_text": "{}"},
        {"engine": {"maxModelLen": 1024}},
        {"rollout": {"drainSeconds": 1}},
        {"template": {"metadata": {"annotations": {"again": "1"}}}},
        {"template": {"spec": {"affinity": None}}},
        {"cache": {"compile": {"claim": "compiled"}}},
        {"autoscaling": {"maxReplicas": 1, "idle": "Sleep"}},
    ],
    ids=str,
)
def test_what_pods_may_notice_counts(changes: dict[str, Any]) -> None:
    assert digest(**changes) != digest()
