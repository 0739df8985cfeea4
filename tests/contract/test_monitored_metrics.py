"""Every query of alerts, dashboard and autoscalers names metrics that the engine has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom.entrypoints.metrics.transfers import transfer_metrics
from atom.entrypoints.outlook.metrics import outlook_metrics
from atom.metrics import TransferMetrics
from atom.model_engine.front.admission.expectations import Expected
from atom.model_engine.wire.outlook_body import Limit
from atom_operator.children.autoscaling.autoscaler import autoscaler
from atom_operator.children.grafana_dashboard import dashboard
from atom_operator.children.monitoring import alerts
from atom_operator.integration_values import Site, SiteAddresses
from tests.support.cluster.promtool import assert_rules
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.operator.builders_operator import plan
from tests.support.server.http_app import serve_app
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
_METRIC = re.compile(r"\batom:[a-z0-9_]+")
_SLO: dict[str, Any] = {"ttft": "2s", "itl": "50ms", "percentile": 90}
_DIVIDED: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-8B"},
    "accelerator": {"type": "amd", "product": "MI300X"},
    "disaggregation": {"prefill": {}},
}
SITE = Site(addresses=SiteAddresses(prometheus="http://prometheus.test"))


_TIERED: dict[str, Any] = {"cache": {"kv": {"hostMemory": "1Gi", "disk": {"size": "2Gi"}}}}


# Of plans with targets of latency and with tiers, and of the decode pods of a divided one.
ALERTS = list(
    {
        each["alert"]: each
        for made in (_DIVIDED, {"slo": _SLO}, _TIERED)
        for each in alerts(plan(**made))
    }.values()
)


def queries() -> Iterator[tuple[str, str]]:
    """A name for people, and a query."""
    made = plan(site=SITE, slo=_SLO, autoscaling={"maxReplicas": 3})
    for each in (made, plan(**_DIVIDED), plan(**_TIERED)):
        for alert in alerts(each):
            yield alert["alert"], alert["expr"]
        for panel in dashboard(each)["panels"]:
            for target in panel["targets"]:
                yield panel["title"], target["expr"]
    wanted = made.integrations.autoscaling
    assert wanted is not None
    for trigger in autoscaler(made, wanted)["spec"]["triggers"]:
        yield trigger["name"], trigger["metadata"]["query"]


async def names_of_the_engine(tmp_path: Path) -> set[str]:
    config = build_test_config(write_model_folder(tmp_path, context_tokens=64))
    async with serve_app(config) as rig:
        assert (await rig.chat("hello")).status_code == 200
        # With the tiers of the KV cache.
        rig.core.report_stats(requests_running=1, offload_pages=1, offload_disk_size_bytes=1)
        await eventually(lambda: rig.engine.stats is not None, "statistics came")
        text, stats = (await rig.client.get("/metrics")).text, rig.engine.stats
    assert stats is not None
    expected = Expected(1.0, 0.1, 0.01, Limit.NOTHING)
    # With steps beside the measured table of a card, which a CPU has not.
    beside = outlook_metrics("model", expected, step_seconds=1.0, ratio=1.0)
    # With the exchange of pages, of a server with --kv-transfer-config.
    moved = transfer_metrics(stats, TransferMetrics(), "model")
    known = {sample.name for metric in (*beside, *moved) for sample in metric.samples}
    return known | {
        line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[:1] != "#"
    }


async def test_every_query_names_metrics_that_the_engine_has(tmp_path: Path) -> None:
    known = await names_of_the_engine(tmp_path)
    found = list(queries())
    assert len(found) > 20
    for what, query in found:
        metrics = set(_METRIC.findall(query))
        assert metrics, f"{what}: {query}"
        assert metrics <= known, f"{what}: {metrics - known}"


def test_prometheus_itself_takes_every_alert_and_query(tmp_path: Path) -> None:
    """By `promtool check rules`; dashboards' and autoscalers' queries go as recorded ones."""
    assert_rules(ALERTS, tmp_path)
    asked = [
        {"record": f"query_{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, (_, query) in enumerate(queries())
    ]
    assert_rules(asked, tmp_path)


async def test_the_adapters_rules_in_the_guide_name_metrics_that_the_engine_has(
    tmp_path: Path,
) -> None:
    known = await names_of_the_engine(tmp_path)
    guide = (ROOT / "docs" / "guides" / "autoscaling.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(rules:\n.*?)```", guide, flags=re.DOTALL)
    served = set()
    for rule in yaml.safe_load(block)["rules"]:
        series = rule["seriesQuery"].split("{")[0]
        assert series in known
        served.add(re.sub(rule["name"]["matches"], rule["name"]["as"].replace("$1", r"\1"), series))
    made = plan(site=SITE, autoscaling={"maxReplicas": 3, "method": "HPA"})
    wanted = made.integrations.autoscaling
    assert wanted is not None
    asked = {item["pods"]["metric"]["name"] for item in autoscaler(made, wanted)["spec"]["metrics"]}
    assert asked <= served


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_every_alert_has_a_runbook_that_says_what_to_do(alert: dict[str, object]) -> None:
    annotations = alert["annotations"]
    assert isinstance(annotations, dict)
    page = ROOT / annotations["runbook"]
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {alert['alert']}")
    assert {"## Meaning", "## Look", "## Do"} <= set(text.splitlines())


def test_every_runbook_belongs_to_an_alert() -> None:
    names = {str(alert["alert"]) for alert in ALERTS}
    chart = (ROOT / "charts" / "atom-operator" / "templates" / "monitoring.yaml").read_text()
    names |= set(re.findall(r"alert: (\w+)", chart))
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == names


def test_a_site_with_a_runbook_address_has_links() -> None:
    made = plan(site=Site(addresses=SiteAddresses(runbooks="https://runbooks.test/atom/")))
    for alert in alerts(made):
        assert alert["annotations"]["runbook_url"] == (
            f"https://runbooks.test/atom/{alert['alert']}.md"
        )


def test_silence_at_zero_replicas_is_no_outage() -> None:
    to_zero = {"maxReplicas": 2, "minReplicas": 0, "activationQuery": "vector(0)"}
    made = plan(site=SITE, autoscaling=to_zero)
    (outage,) = [alert for alert in alerts(made) if alert["alert"] == "AtomNoReplicaReady"]
    assert "absent(" not in outage["expr"]
    (usual,) = [alert for alert in alerts(plan(slo=_SLO)) if alert["alert"] == "AtomNoReplicaReady"]
    assert "absent(" in usual["expr"]


def test_rows_of_roles_and_targets_are_those_of_the_spec() -> None:
    def titles(**changes: Any) -> list[str]:
        return [panel["title"] for panel in dashboard(plan(**changes))["panels"]]

    usual, divided, promised = titles(), titles(**_DIVIDED), titles(slo=_SLO)
    assert [title for title in divided if title not in usual] == [
        "KV cache moved between prefill and decode",
        "Decode legs by the origin of their prompt, per second",
        "Prompts kept for decode, and pages lost per second",
    ]
    assert [title for title in promised if title not in usual] == [
        "Predicted latency by its target, missed above 1"
    ]
    assert [alert["alert"] for alert in alerts(plan(**_DIVIDED))][-1] == "AtomKvTransfersFail"
