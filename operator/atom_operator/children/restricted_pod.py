"""Finds the rights that a finished pod template asks for beyond what every author may have. Pure.

The lists here are the allowed fields; every other field, type and value is a right that a site has
to allow. They follow the restricted Pod Security Standard of Kubernetes and add placement (a node
by name, every taint), Secrets and runtime classes. A field of a newer Kubernetes is no exception: a
test compares the lists with the API's own fields. Called by template_guard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any

from atom_operator.api.pod_schema import ROOT, PodField, field_of, fields_of
from atom_operator.integration_values import TemplateFeature
from atom_operator.served_schema.near_names import nearest

# Fields that may have every value, and those whose values are looked at below.
FREE_POD_FIELDS = frozenset(
    {
        *("activeDeadlineSeconds", "automountServiceAccountToken", "dnsConfig", "dnsPolicy"),
        *("enableServiceLinks", "hostAliases", "hostUsers", "hostname", "hostnameOverride"),
        *("imagePullSecrets", "nodeSelector", "os", "overhead", "preemptionPolicy", "priority"),
        *("readinessGates", "resourceClaims", "resources", "restartPolicy", "schedulerName"),
        *("schedulingGates", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain"),
        *("terminationGracePeriodSeconds", "topologySpreadConstraints"),
    }
)
_LEAVES = (str, int, float, NoneType)  # of JSON, with bool
_CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
JUDGED_POD_FIELDS = frozenset(
    {
        *(*_CONTAINER_LISTS, "affinity", "hostIPC", "hostNetwork", "hostPID", "nodeName"),
        *("priorityClassName", "runtimeClassName", "securityContext", "serviceAccount"),
        *("serviceAccountName", "tolerations", "volumes"),
    }
)
FREE_CONTAINER_FIELDS = frozenset(
    {
        *("args", "command", "image", "imagePullPolicy", "name", "resizePolicy", "resources"),
        *("restartPolicy", "restartPolicyRules", "stdin", "stdinOnce", "targetContainerName"),
        *("terminationMessagePath", "terminationMessagePolicy", "tty", "volumeDevices"),
        "workingDir",
    }
)
JUDGED_CONTAINER_FIELDS = frozenset(
    {
        *("env", "envFrom", "lifecycle", "livenessProbe", "ports", "readinessProbe"),
        *("securityContext", "startupProbe", "volumeMounts"),
    }
)
FREE_CONTEXT_FIELDS = frozenset(
    {
        *("fsGroupChangePolicy", "readOnlyRootFilesystem", "seLinuxChangePolicy"),
        "supplementalGroupsPolicy",
    }
)
JUDGED_CONTEXT_FIELDS = frozenset(
    {
        *("allowPrivilegeEscalation", "appArmorProfile", "capabilities", "fsGroup", "privileged"),
        *("procMount", "runAsGroup", "runAsNonRoot", "runAsUser", "seLinuxOptions"),
        *("seccompProfile", "supplementalGroups", "sysctls", "windowsOptions"),
    }
)
# The standard's types, and images, which are read-only files of a registry.
ALLOWED_VOLUMES = frozenset(
    {
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
        *("persistentVolumeClaim", "projected", "secret"),
    }
)
_CAPABILITIES = frozenset({"NET_BIND_SERVICE"})
_SE_LINUX = frozenset(
    {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
)
_PROFILES = frozenset({"RuntimeDefault", "Localhost"})
_PROPAGATION = frozenset({"None", "HostToContainer"})
_SYSTEM_CLASSES = "system-"
_APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"  # the API server reads it still
_APP_ARMOR_PROFILES = ("runtime/default", "localhost/")
_HOST = {
    "hostPID": TemplateFeature.HOST_PID,
    "hostIPC": TemplateFeature.HOST_IPC,
    "hostNetwork": TemplateFeature.HOST_NETWORK,
}
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_HOOKS = ("postStart", "preStop")


@dataclass(frozen=True, slots=True)
class Right:
    """Name one right that a template asks for. `value`: the part of the feature that it is, such as
    the type of a volume; None where the feature has no parts. `near`: the field that an unknown one
    may be a misspelling of."""

    path: str
    feature: TemplateFeature
    value: str | None = None
    near: str | None = None

    def below(self, place: str) -> Right:
        """Return this right by a path that begins with `place`."""
        return replace(self, path=f"{place}.{self.path}")


@dataclass(frozen=True, slots=True)
class Given:
    """Hold the objects that an author may use without asking: the pods' account, and the Secrets
    that typed fields of the spec, or its AtomProfile, name."""

    account: str | None
    secrets: Collection[str] = ()


def rights_of(template: Mapping[str, Any], given: Given) -> Iterator[Right]:
    """Yield every right beyond the standard that pods of a finished template would have."""
    for name, value in ((template.get("metadata") or {}).get("annotations") or {}).items():
        if name.startswith(_APP_ARMOR) and not str(value).startswith(_APP_ARMOR_PROFILES):
            yield Right(f"metadata.annotations[{name}]", TemplateFeature.UNCONFINED)
    pod = template["spec"]
    for right in (*_of_pod(pod, given), *_of_placement(pod), *_of_volumes(pod)):
        yield right.below("spec")
    for path, secret in _secrets_of(pod, "spec"):
        if secret not in given.secrets:
            yield Right(path, TemplateFeature.SECRETS, secret)


def secrets_of(pod: Mapping[str, Any]) -> frozenset[str]:
    """Name every Secret whose content a pod's containers can read."""
    return frozenset(name for _, name in _secrets_of(pod, ""))


def unknown_fields(overlay: Mapping[str, Any]) -> Iterator[Right]:
    """Yield the fields of an overlay that this version's description of pods does not have."""
    yield from _unknown(overlay, PodField(ROOT), "")


def _unknown(value: Any, field: PodField, path: str) -> Iterator[Right]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _unknown(item, PodField(field.type), f"{path}[{number}]")
    elif isinstance(value, Mapping) and fields_of(field.type):
        in_map = field.container == "map"
        for name, inner in value.items():
            where = f"{path}.{name}".lstrip(".")
            if in_map:
                yield from _unknown(inner, PodField(field.type), where)
            elif not name.startswith("$"):
                yield from _unknown_field(inner, field.type, name, where)


def _unknown_field(value: Any, type_name: str, name: str, path: str) -> Iterator[Right]:
    known = fields_of(type_name)
    if name not in known:
        yield Right(path, TemplateFeature.OTHER_FIELDS, name, nearest(name, known))
    else:
        yield from _unknown(value, field_of(type_name, name), path)


def _others(value: Mapping[str, Any], known: Collection[str], path: str) -> Iterator[Right]:
    for name in value:
        if name not in known:
            yield Right(f"{path}.{name}".lstrip("."), TemplateFeature.OTHER_FIELDS, name)


def _of_pod(pod: Mapping[str, Any], given: Given) -> Iterator[Right]:
    yield from _others(pod, FREE_POD_FIELDS | JUDGED_POD_FIELDS, "")
    for name, feature in _HOST.items():
        if pod.get(name):
            yield Right(name, feature)
    names = {pod.get("serviceAccountName"), pod.get("serviceAccount", given.account)}
    if names != {given.account}:
        yield Right("serviceAccountName", TemplateFeature.SERVICE_ACCOUNT)
    context = pod.get("securityContext") or {}
    if not context.get("runAsNonRoot"):  # without it the image may choose root
        yield Right("securityContext.runAsNonRoot", TemplateFeature.RUN_AS_ROOT)
    yield from _of_context(context, "securityContext")
    for field in _CONTAINER_LISTS:
        for container in pod.get(field) or ():
            path = f"{field}[{container.get('name')}]"
            yield from _of_container(container, path)
            own = container.get("securityContext") or {}
            if not context.get("seccompProfile") and not own.get("seccompProfile"):
                where = f"{path}.securityContext.seccompProfile"  # kubelets then give none
                yield Right(where, TemplateFeature.UNCONFINED)


def _of_placement(pod: Mapping[str, Any]) -> Iterator[Right]:
    if pod.get("nodeName"):
        yield Right("nodeName", TemplateFeature.NODE_NAME)
    priority, runtime = pod.get("priorityClassName"), pod.get("runtimeClassName")
    if str(priority or "").startswith(_SYSTEM_CLASSES):
        yield Right("priorityClassName", TemplateFeature.PRIORITY_CLASS, str(priority))
    if runtime:
        yield Right("runtimeClassName", TemplateFeature.RUNTIME_CLASS, str(runtime))
    for number, toleration in enumerate(pod.get("tolerations") or ()):
        if not toleration.get("key"):
            yield Right(f"tolerations[{number}]", TemplateFeature.TOLERATIONS)
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    terms = [*(required.get("nodeSelectorTerms") or ()), *(i.get("preference") for i in preferred)]
    if any((term or {}).get("matchFields") for term in terms):
        yield Right("affinity.nodeAffinity", TemplateFeature.NODE_NAME)


def _of_volumes(pod: Mapping[str, Any]) -> Iterator[Right]:
    for volume in pod.get("volumes") or ():
        for name, source in volume.items():
            path = f"volumes[{volume.get('name')}].{name}"
            if name == "name" or source is None or name in ALLOWED_VOLUMES:
                continue
            if name == "hostPath":
                yield Right(path, TemplateFeature.HOST_PATH)
            else:
                yield Right(path, TemplateFeature.VOLUMES, name)


def _of_container(container: Mapping[str, Any], path: str) -> Iterator[Right]:
    yield from _others(container, FREE_CONTAINER_FIELDS | JUDGED_CONTAINER_FIELDS, path)
    for port in container.get("ports") or ():
        if port.get("hostPort"):
            where = f"{path}.ports[{port.get('containerPort')}].hostPort"
            yield Right(where, TemplateFeature.HOST_PORT, str(port["hostPort"]))
    for mount in container.get("volumeMounts") or ():
        if (mount.get("mountPropagation") or "None") not in _PROPAGATION:
            where = f"{path}.volumeMounts[{mount.get('mountPath')}].mountPropagation"
            yield Right(where, TemplateFeature.MOUNT_PROPAGATION)
    hooks = container.get("lifecycle") or {}
    handlers = {name: container.get(name) for name in _PROBES}
    handlers |= {f"lifecycle.{name}": hooks.get(name) for name in _HOOKS}
    for name, handler in handlers.items():
        for kind in ("httpGet", "tcpSocket"):
            if ((handler or {}).get(kind) or {}).get("host"):
                yield Right(f"{path}.{name}.{kind}.host", TemplateFeature.PROBE_HOST)
    context = container.get("securityContext") or {}
    where = f"{path}.securityContext"
    if context.get("runAsNonRoot") is False:
        yield Right(f"{where}.runAsNonRoot", TemplateFeature.RUN_AS_ROOT)
    yield from _of_context(context, where)


def _of_context(context: Mapping[str, Any], path: str) -> Iterator[Right]:
    """Yield the rights of a security context, of a pod or of a container."""
    yield from _others(context, FREE_CONTEXT_FIELDS | JUDGED_CONTEXT_FIELDS, path)
    windows = context.get("windowsOptions") or {}
    if context.get("privileged") or windows.get("hostProcess"):
        name = "privileged" if context.get("privileged") else "windowsOptions.hostProcess"
        yield Right(f"{path}.{name}", TemplateFeature.PRIVILEGED)
    if context.get("allowPrivilegeEscalation"):
        where = f"{path}.allowPrivilegeEscalation"
        yield Right(where, TemplateFeature.PRIVILEGE_ESCALATION)
    added = (context.get("capabilities") or {}).get("add") or ()
    for capability in sorted(set(added) - _CAPABILITIES):
        yield Right(f"{path}.capabilities.add", TemplateFeature.CAPABILITIES, capability)
    if context.get("runAsUser") == 0:
        yield Right(f"{path}.runAsUser", TemplateFeature.RUN_AS_ROOT)
    for name in ("runAsGroup", "fsGroup"):
        if context.get(name) == 0:
            yield Right(f"{path}.{name}", TemplateFeature.ROOT_GROUP)
    if 0 in (context.get("supplementalGroups") or ()):
        yield Right(f"{path}.supplementalGroups", TemplateFeature.ROOT_GROUP)
    for sysctl in context.get("sysctls") or ():
        yield Right(f"{path}.sysctls", TemplateFeature.SYSCTLS, str(sysctl.get("name")))
    yield from _of_confinement(context, path)


def _of_confinement(context: Mapping[str, Any], path: str) -> Iterator[Right]:
    for profile in ("seccompProfile", "appArmorProfile"):
        found = context.get(profile)
        if found and found.get("type") not in _PROFILES:
            yield Right(f"{path}.{profile}", TemplateFeature.UNCONFINED)
    options = context.get("seLinuxOptions") or {}
    if options.get("user") or options.get("role") or options.get("type", "") not in _SE_LINUX:
        yield Right(f"{path}.seLinuxOptions", TemplateFeature.UNCONFINED)
    if context.get("procMount") not in (None, "Default"):
        yield Right(f"{path}.procMount", TemplateFeature.UNCONFINED)


def _secrets_of(node: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of every reference to a Secret. Leaves are left out first: a
    finished pod has a hundred, and is read three times in each plan."""
    if isinstance(node, list):
        for number, item in enumerate(node):
            if isinstance(item, _LEAVES):
                continue
            key = item.get("name") if isinstance(item, Mapping) else None
            yield from _secrets_of(item, f"{path}[{number if key is None else key}]")
    elif isinstance(node, Mapping):
        for name, inner in node.items():
            if isinstance(inner, _LEAVES):
                continue
            where = f"{path}.{name}".lstrip(".")
            is_reference = name in ("secret", "secretKeyRef") or name.lower().endswith("secretref")
            if is_reference and isinstance(inner, Mapping):
                yield where, str(inner.get("secretName") or inner.get("name"))
            elif name != "imagePullSecrets":
                yield from _secrets_of(inner, where)
