"""Prometheus, with the service discovery of Kubernetes alone and without its web interface.

What it scrapes and by which rules it alerts are files of its state folder, `scrape/*.json` and
`rules/*.json`, as prometheus-operator would write them from PodMonitors and PrometheusRules. A POST
to /-/reload makes it read them.
"""

from __future__ import annotations

import json

from devcluster.neighbours.neighbour import Installation, Neighbour, Place
from devcluster.node import network
from devcluster.node.components import Component, Probe
from devcluster.programs.binaries import Group

MODULE = "github.com/prometheus/prometheus"
PORT = 9090
URL = f"http://{network.NODE_ADDRESS}:{PORT}"
GROUP = Group(
    "prometheus",
    MODULE,
    {"prometheus": f"{MODULE}/cmd/prometheus"},
    tags=("remove_all_sd", "enable_kubernetes_sd"),
    note="about 4 minutes on 2 cores",
)


def install(place: Place) -> Installation:
    config = {
        "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
        "rule_files": [str(place.folder / "rules" / "*.json")],
        "scrape_config_files": [str(place.folder / "scrape" / "*.json")],
    }
    argv = (
        str(place.programs["prometheus"]),
        f"--config.file={place.folder / 'prometheus.json'}",
        f"--storage.tsdb.path={place.folder / 'data'}",
        f"--web.listen-address=0.0.0.0:{PORT}",
        "--web.enable-lifecycle",
    )
    component = Component("prometheus", argv, ("apiserver",), Probe("tcp", f"127.0.0.1:{PORT}"))
    return Installation([component], files={"prometheus.json": json.dumps(config, indent=1)})


PROMETHEUS = Neighbour("prometheus", GROUP, install)
