"""The inference extension's endpoint picker, for one InferencePool, with the flags that
docs/guides/gateway-and-monitoring.md gives for this project's engine; and a client that asks it.
"""

from __future__ import annotations

from devcluster.neighbours.neighbour import Installation, Neighbour, Place, namespace
from devcluster.node.components import Component, Probe
from devcluster.programs.binaries import Group

MODULE = "sigs.k8s.io/gateway-api-inference-extension"
POOL = "chat"
NAMESPACE = "endpoint-picker"
PORT = 9002
METRICS_PORT = 9850
CLIENT = "ask-endpoint-picker"
GROUP = Group(
    "endpoint-picker",
    MODULE,
    {"endpoint-picker": f"{MODULE}/cmd/epp", CLIENT: "."},
    note="about 2 minutes on 2 cores",
)
METRICS = (
    "--total-queued-requests-metric=atom:requests_waiting",
    "--total-running-requests-metric=atom:requests_running",
    "--kv-cache-usage-percentage-metric=atom:kv_cache_usage_ratio",
    "--lora-info-metric=",
    "--cache-info-metric=",
)
PLUGINS = """apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer}
  - {pluginRef: kv-cache-utilization-scorer}
  - {pluginRef: prefix-cache-scorer}
"""


def install(place: Place) -> Installation:
    argv = place.started_with(
        {"NAMESPACE": NAMESPACE, "POD_NAME": "endpoint-picker"},
        str(place.programs["endpoint-picker"]),
        f"--pool-name={POOL}",
        f"--pool-namespace={NAMESPACE}",
        f"--grpc-port={PORT}",
        "--grpc-health-port=9003",
        f"--metrics-port={METRICS_PORT}",
        "--metrics-endpoint-auth=false",
        "--secure-serving=false",
        f"--config-file={place.folder / 'plugins.yaml'}",
        *METRICS,
    )
    # It answers once the pool is there, which a test makes; until then it only lives.
    component = Component(
        "endpoint-picker", argv, ("apiserver",), Probe("tcp", f"127.0.0.1:{METRICS_PORT}")
    )
    return Installation([component], [namespace(NAMESPACE)], {"plugins.yaml": PLUGINS})


ENDPOINT_PICKER = Neighbour(
    "endpoint-picker", GROUP, install, crds=("config/crd/bases/inference.networking*.yaml",)
)
