"""Argo CD's health script, run as Argo CD runs it over what the reconciler really writes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from lupa import lua51

from atom_operator.api.crd import UNSEEN
from atom_operator.constants import ConditionType
from atom_operator.domain import Manifest
from tests.support.cluster.live_cluster import ROOT
from tests.support.operator.situations import SITUATIONS, situation

GUIDE = ROOT / "docs" / "guides" / "gitops.md"
SCRIPT = ROOT / "docs" / "guides" / "argocd" / "health.lua"
CONFIG = ROOT / "docs" / "guides" / "argocd" / "argocd-cm.yaml"

HEALTH = {
    "new": "Progressing",
    "changed since the last look": "Progressing",
    "serving": "Healthy",
    "rolling out": "Progressing",
    "waiting for a node": "Progressing",
    "downloading": "Progressing",
    "download failed": "Degraded",
    "first pod fails": "Degraded",
    "replica lost": "Progressing",
    "replica crashes": "Degraded",
    "deadline passed": "Degraded",
    "rolled back": "Degraded",
    "child refused": "Degraded",
    "invalid": "Degraded",
    "too large": "Degraded",
    "too large a change": "Degraded",
    "scaled to zero": "Suspended",
    "suspended": "Suspended",
}


def health(script: str, manifest: Manifest) -> tuple[str, str]:
    """Status and message, in the Lua 5.1 that Argo CD has: no string, math or io library."""
    runtime = lua51.LuaRuntime(unpack_returned_tuples=True, register_eval=False)
    for library in ("string", "math", "io", "debug", "coroutine", "python"):
        runtime.execute(f"{library} = nil")
    runtime.globals().obj = runtime.table_from(manifest, recursive=True)
    result: Any = runtime.execute(script)
    return str(result["status"]), str(result["message"])


def ready_message(manifest: Manifest) -> str:
    (ready,) = [item for item in manifest["status"]["conditions"] if item["type"] == "Ready"]
    return str(ready["message"])


def test_every_situation_has_an_expected_health() -> None:
    assert list(HEALTH) == list(SITUATIONS)


@pytest.mark.parametrize("name", SITUATIONS)
async def test_health_of_what_the_reconciler_writes(name: str) -> None:
    manifest = await situation(name)
    status, message = health(SCRIPT.read_text(encoding="utf-8"), manifest)
    assert status == HEALTH[name], message
    if name not in ("new", "changed since the last look"):
        assert message == ready_message(manifest)


async def test_a_status_in_the_making_is_progressing() -> None:
    manifest = await situation("serving")
    conditions = [item for item in manifest["status"]["conditions"] if item["type"] != "Ready"]
    for status in ({**manifest["status"], "conditions": conditions}, UNSEEN):
        partial = {**manifest, "status": status}
        assert health(SCRIPT.read_text(encoding="utf-8"), partial)[0] == "Progressing"


def test_the_config_map_holds_the_script_and_the_guide_leads_to_it() -> None:
    data = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["data"]
    key = "resource.customizations.health.serving.atom.dev_AtomDeployment"
    assert data[key] == SCRIPT.read_text(encoding="utf-8")
    guide = GUIDE.read_text(encoding="utf-8")
    assert SCRIPT.read_text(encoding="utf-8") in guide
    assert "argocd/argocd-cm.yaml" in guide


def test_the_script_refers_to_no_condition_that_does_not_exist() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    named = set(re.findall(r"\bis\.(\w+)", text))
    assert named == {"Ready", "Stalled", "Degraded"}
    assert named <= set(ConditionType)
