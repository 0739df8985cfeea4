"""What a user can do next about a cause, by the words that Kubernetes and the engine use. Pure.

A table: the first pattern that is found decides. Called by why.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_QUOTA = r"exceeded quota: (?P<quota>[^,\s]+)"
# Pattern of the words, and the remedy; {NAME} is a group of the pattern, or namespace, logs.
_TABLE: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        _QUOTA,
        (
            "raise the quota, end something else in the namespace, or ask for less in "
            "spec.template (engines) or spec.jobs.template (Jobs)",
            "kubectl describe quota {quota} -n {namespace}",
        ),
    ),
    (
        r"failed quota: (?P<quota>[^:\s]+): must specify (?P<what>.+)",
        (
            "the quota counts {what}: set them for every container in spec.template (engines) or "
            "spec.jobs.template (Jobs)",
            "kubectl describe quota {quota} -n {namespace}",
        ),
    ),
    (
        r"(maximum|minimum) .* per (Container|Pod)",
        (
            "ask for what the LimitRange allows, in spec.template or spec.jobs.template",
            "kubectl describe limitrange -n {namespace}",
        ),
    ),
    (
        r'admission webhook "(?P<hook>[^"]+)" denied',
        (
            "do what the policy behind {hook} asks for: labels and annotations go into "
            "spec.template.metadata and spec.jobs.template.metadata",
        ),
    ),
    (
        r"violates PodSecurity",
        ("take what the namespace's Pod Security level forbids out of spec.template",),
    ),
    (
        r"Insufficient amd\.com/",
        (
            "free devices, add a node that has them, or ask for fewer (spec.parallelism, "
            "spec.replicas)",
            "kubectl atom gpus",
        ),
    ),
    (
        r"cannot allocate all claims|resource claim",
        (
            "free devices, or look whether the DRA driver publishes such ones (spec.accelerator)",
            "kubectl get resourceslices,deviceclasses; kubectl get resourceclaims -n {namespace}",
        ),
    ),
    (
        r"Insufficient (?P<what>\S+?)[,. ]|Too many pods",
        (
            "free it on a node, add a node, or ask for less in spec.template",
            "kubectl describe nodes",
        ),
    ),
    (
        r"untolerated taint",
        ("tolerate the taint in spec.template.spec.tolerations", "kubectl describe nodes"),
    ),
    (
        r"didn't match Pod's node affinity/selector|node selector",
        (
            "name a product that a node has (spec.accelerator.product), or change the node "
            "selector in spec.template",
            "kubectl get nodes --show-labels",
        ),
    ),
    (
        r'persistentvolumeclaim "(?P<claim>[^"]+)" not found',
        ("create the claim {claim} in namespace {namespace}, or correct its name in the spec",),
    ),
    (
        r"unbound immediate PersistentVolumeClaims|waiting for a volume",
        ("look why the claim is not bound", "kubectl describe pvc -n {namespace}"),
    ),
    (
        r"ErrImagePull|ImagePullBackOff|Failed to pull image|InvalidImageName|ErrImageNeverPull",
        (
            "correct spec.engine.image, or give pods the registry's secret "
            "(spec.template.spec.imagePullSecrets)",
        ),
    ),
    (
        r'secret "(?P<secret>[^"]+)" not found',
        ("create the Secret {secret} in namespace {namespace}, or correct its name in the spec",),
    ),
    (
        r'configmap "(?P<map>[^"]+)" not found',
        ("create the ConfigMap {map} in namespace {namespace}, or correct its name in the spec",),
    ),
    (
        r"couldn't find key (?P<key>\S+) in",
        ("put the key {key} into that object, or correct its name in the spec",),
    ),
    (
        r"OOMKilled|low on resource: memory",
        ("give the container more memory (spec.template, on cpu spec.accelerator.memory)",),
    ),
    (
        r"exceeds the limit|low on resource: ephemeral-storage",
        ("raise the volume's sizeLimit or the ephemeral-storage of spec.template",),
    ),
    (
        r"UnexpectedAdmissionError|unhealthy devices",
        ("look at the node's devices and its device plugin", "kubectl atom gpus"),
    ),
    (
        r"on node (?P<node>\S+): .*(?:unhealthy|taint amd-gpu-unhealthy)",
        (
            "repair or replace the device; until then a free place elsewhere, or one more "
            "node, lets the pod be moved",
            "kubectl describe node {node}",
        ),
    ),
    (
        r"node (?P<node>\S+) has not reported",
        (
            "bring the node back, or delete it: its pods stay until then",
            "kubectl describe node {node}",
        ),
    ),
    (
        r"scheduling gate",
        ("wait until the queue admits the pod, or look at its quota",),
    ),
    (
        r"ended: |CrashLoopBackOff|Back-off restarting|probe failed",
        ("read what it said before it ended", "{logs} -n {namespace}"),
    ),
    (
        r"no operator has looked",
        (
            "look whether the operator runs and watches this namespace",
            "kubectl get deployments -A -l app.kubernetes.io/name=atom-operator",
        ),
    ),
)
_COMPILED = tuple((re.compile(pattern), steps) for pattern, steps in _TABLE)


def remedy(about: str, words: str, owner: str, namespace: str) -> tuple[str, ...]:
    """Return steps, most useful first; empty if only the words themselves are known. `owner`: the
    AtomDeployment's name."""
    name = about.partition("/")[2]
    ours = name.startswith(f"{owner}-") and "-inspect-" not in name
    logs = f"kubectl atom logs {owner} -p" if ours else f"kubectl logs {name}"
    for pattern, steps in _COMPILED:
        match = pattern.search(words)
        if match is not None:
            groups: Mapping[str, str] = {k: v or "" for k, v in match.groupdict().items()}
            values = {**groups, "namespace": namespace, "logs": logs}
            return tuple(step.format(**values) for step in steps)
    return ()
