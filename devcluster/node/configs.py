"""Contents of the configuration files of containerd and the kubelet: pure text.

Facts behind the settings: without CAP_SYS_RESOURCE containerd must not raise OOM scores, the cgroup
driver must be cgroupfs where there is no systemd, and the paths that the kubelet fixes in its code
are bound to the state folder by the supervisor.
"""

from __future__ import annotations

import json
from pathlib import Path

from devcluster.node import network
from devcluster.settings import Settings

# the device manager's socket is fixed below it, whatever the kubelet is told
KUBELET_FOLDER = "/var/lib/kubelet"
POD_LOGS_FOLDER = "/var/log/pods"
CONTAINER_LOGS_FOLDER = "/var/log/containers"  # fixed in the kubelet's code
BOUND_FOLDERS = (KUBELET_FOLDER, POD_LOGS_FOLDER, CONTAINER_LOGS_FOLDER)
PAUSE_IMAGE = "localhost/pause:dev"


def containerd_config(settings: Settings, cni_bin: Path, snapshotter: str) -> str:
    return f"""version = 2
root = "{settings.state}/containerd/root"
state = "{settings.state}/containerd/state"
[grpc]
  address = "{settings.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{cni_bin}"
  conf_dir = "{settings.state}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "{snapshotter}"
"""


def kubelet_config(settings: Settings) -> str:
    """JSON, which the kubelet reads as YAML."""
    pki = settings.pki
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
            "webhook": {"enabled": True},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/kubelet.crt",
        "tlsPrivateKeyFile": f"{pki}/kubelet.key",
        "containerRuntimeEndpoint": f"unix://{settings.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{settings.name}",
        "clusterDNS": [network.DNS_ADDRESS],
        "clusterDomain": network.DOMAIN,
        "resolvConf": f"{settings.state}/resolv.conf",
        "podLogsDir": POD_LOGS_FOLDER,
        "volumePluginDir": f"{KUBELET_FOLDER}/volume-plugins",
        "failSwapOn": False,
        "evictionHard": {"memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,  # images come by hand, so none may be collected
        "maxPods": 200,
        "serializeImagePulls": False,
    }
    return json.dumps(config, indent=1)
