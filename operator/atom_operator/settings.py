"""OperatorSettings: what an administrator decides, read once from the environment and flags.

Every variable begins with ATOM_OPERATOR_; the chart sets them. Frozen; handed on as a parameter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from atom.sizing import MAX_TENSOR_PARALLEL
from atom_operator.integration_values import (
    ENGINE_USER_ID,
    PICKER_IMAGES,
    EngineFeature,
    FeatureValue,
    PickerKind,
    PickerProgram,
    Site,
    SiteAddresses,
    TemplateFeature,
    template_features,
)

PREFIX = "ATOM_OPERATOR_"


class SettingsError(ValueError):
    """A variable has a value that cannot work; the message names it and the accepted range."""


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """The Lease that replicas share, and this replica's name in it."""

    namespace: str
    name: str
    identity: str
    cluster_namespace: str | None = None  # of the whole cluster's, where ours is of some namespaces


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Configure where admission reviews are served, and with whose certificate."""

    port: int
    # Either a folder that another program fills, or the settings to make certificates ourselves.
    certificate_folder: str = ""
    hosts: tuple[str, ...] = ()  # names and addresses by which the API servers call us
    namespace: str = ""  # of the Secret
    secret: str = ""
    configuration: str = ""  # the ValidatingWebhookConfiguration


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Bound the rollouts of all AtomDeployments together."""

    most: int = 1  # AtomDeployments that roll at the same time; 0: any number
    follow_defaults: bool = True  # a changed default of many begins rollouts by itself


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Configure the operator's own HTTP servers; a port of 0 is not served."""

    health_port: int = 8080
    metrics_port: int = 8081
    page: bool = False  # beside the metrics: an overview of the deployments


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Defaults fit a development run outside the cluster."""

    engine_images: Mapping[Literal["amd", "cpu"], str] = field(default_factory=dict)
    namespaces: tuple[str, ...] = ()  # empty: the whole cluster
    resync_seconds: float = 300.0  # every AtomDeployment is reconciled at least this often
    workers: int = 4  # reconciles at the same time
    rollouts: RolloutSettings = RolloutSettings()
    endpoints: EndpointSettings = EndpointSettings()
    log_level: str = "INFO"
    lease: LeaseSettings | None = None  # None: this process is the only one
    webhook: WebhookSettings | None = None  # None: no admission reviews
    site: Site = field(default_factory=Site)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> OperatorSettings:
        """Read ATOM_OPERATOR_*; raises SettingsError."""
        images: dict[Literal["amd", "cpu"], str] = {}
        if image := environ.get(f"{PREFIX}ENGINE_IMAGE_AMD"):
            images["amd"] = image
        if image := environ.get(f"{PREFIX}ENGINE_IMAGE_CPU"):
            images["cpu"] = image
        defaults = cls()
        return cls(
            engine_images=images,
            namespaces=_names(environ, "NAMESPACES"),
            resync_seconds=_number(environ, "RESYNC_SECONDS", defaults.resync_seconds, 1, 86_400),
            workers=int(_number(environ, "WORKERS", defaults.workers, 1, 64)),
            rollouts=_rollouts(environ, defaults.rollouts),
            endpoints=_endpoints(environ, defaults.endpoints),
            log_level=environ.get(f"{PREFIX}LOG_LEVEL", defaults.log_level).upper(),
            lease=_lease(environ),
            webhook=_webhook(environ),
            site=_site(environ),
        )


def _rollouts(environ: Mapping[str, str], defaults: RolloutSettings) -> RolloutSettings:
    return RolloutSettings(
        most=int(_number(environ, "MAX_ROLLOUTS", defaults.most, 0, 10_000)),
        follow_defaults=environ.get(f"{PREFIX}FOLLOW_DEFAULTS", "true").lower() == "true",
    )


def _endpoints(environ: Mapping[str, str], defaults: EndpointSettings) -> EndpointSettings:
    return EndpointSettings(
        health_port=int(_number(environ, "HEALTH_PORT", defaults.health_port, 0, 65_535)),
        metrics_port=int(_number(environ, "METRICS_PORT", defaults.metrics_port, 0, 65_535)),
        page=environ.get(f"{PREFIX}PAGE", "false").lower() == "true",
    )


def _lease(environ: Mapping[str, str]) -> LeaseSettings | None:
    name = environ.get(f"{PREFIX}LEASE")
    if not name:
        return None
    namespace = environ.get(f"{PREFIX}LEASE_NAMESPACE")
    return LeaseSettings(
        namespace=namespace or _required(environ, "POD_NAMESPACE", f"{PREFIX}LEASE is set"),
        name=name,
        identity=_required(environ, "POD_NAME", f"{PREFIX}LEASE is set"),
        cluster_namespace=environ.get(f"{PREFIX}CLUSTER_LEASE_NAMESPACE") or None,
    )


def _webhook(environ: Mapping[str, str]) -> WebhookSettings | None:
    port = int(_number(environ, "WEBHOOK_PORT", 0, 0, 65_535))
    if not port:
        return None
    folder = environ.get(f"{PREFIX}WEBHOOK_CERTIFICATE_FOLDER")
    if folder:
        return WebhookSettings(port, certificate_folder=folder)
    because = f"{PREFIX}WEBHOOK_PORT is set and {PREFIX}WEBHOOK_CERTIFICATE_FOLDER is not"
    return WebhookSettings(
        port,
        hosts=tuple(_required(environ, "WEBHOOK_HOSTS", because).split(",")),
        namespace=_required(environ, "POD_NAMESPACE", because),
        secret=_required(environ, "WEBHOOK_SECRET", because),
        configuration=_required(environ, "WEBHOOK_CONFIGURATION", because),
    )


def _required(environ: Mapping[str, str], name: str, because: str) -> str:
    value = environ.get(PREFIX + name)
    if not value:
        raise SettingsError(f"{PREFIX}{name} must be set, because {because}")
    return value


def _site(environ: Mapping[str, str]) -> Site:
    forbidden, values = _template_features(environ)
    return Site(
        addresses=SiteAddresses(
            prometheus=environ.get(f"{PREFIX}PROMETHEUS_ADDRESS") or None,
            runbooks=environ.get(f"{PREFIX}RUNBOOK_BASE_URL") or None,
            operator_namespace=environ.get(f"{PREFIX}POD_NAMESPACE") or None,
        ),
        engine_tensor_parallel=int(
            _number(environ, "ENGINE_MAX_TENSOR_PARALLEL", MAX_TENSOR_PARALLEL, 1, 128)
        ),
        engine_multi_node=environ.get(f"{PREFIX}ENGINE_MULTI_NODE", "true").lower() == "true",
        engine_architectures=_names(environ, "ENGINE_ARCHITECTURES"),
        engine_features=_features(environ),
        template_forbidden=forbidden,
        template_values=values,
        user_id=_user_id(environ),
        pull_secrets=_names(environ, "ENGINE_PULL_SECRETS"),
        defaults=_defaults(environ),
        picker=_picker(environ),
    )


def _picker(environ: Mapping[str, str]) -> PickerProgram:
    name = environ.get(f"{PREFIX}PICKER_KIND") or PickerKind.LLM_D
    try:
        kind = PickerKind(name)
    except ValueError as error:
        known = ", ".join(PickerKind)
        raise SettingsError(f"{PREFIX}PICKER_KIND: {error}; known: {known}") from error
    return PickerProgram(kind, environ.get(f"{PREFIX}PICKER_IMAGE") or PICKER_IMAGES[kind])


def _user_id(environ: Mapping[str, str]) -> int | None:
    """Read which user pods run as; an empty variable leaves it to the cluster."""
    if environ.get(f"{PREFIX}ENGINE_USER_ID") == "":
        return None
    return int(_number(environ, "ENGINE_USER_ID", ENGINE_USER_ID, 1, 2_147_483_647))


def _defaults(environ: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Read the chart's profile. An invalid one is reported by the AtomDeployments that take it, and
    ends no operator."""
    text = environ.get(f"{PREFIX}DEFAULTS")
    if not text:
        return None
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise SettingsError(f"{PREFIX}DEFAULTS is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise SettingsError(f"{PREFIX}DEFAULTS must be an object, an AtomProfile's spec")
    return found


def _names(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    values = environ.get(PREFIX + name, "").split(",")
    return tuple(value.strip() for value in values if value.strip())


def _features(environ: Mapping[str, str]) -> frozenset[EngineFeature]:
    names = _names(environ, "ENGINE_FEATURES")
    try:
        return frozenset(EngineFeature(name) for name in names)
    except ValueError as error:
        known = ", ".join(EngineFeature)
        raise SettingsError(f"{PREFIX}ENGINE_FEATURES: {error}; known: {known}") from error


def _template_features(
    environ: Mapping[str, str],
) -> tuple[frozenset[TemplateFeature], frozenset[FeatureValue]]:
    forbidden = "TEMPLATE_FORBIDDEN"
    listed = _names(environ, forbidden) if f"{PREFIX}{forbidden}" in environ else None
    try:
        return template_features(_names(environ, "TEMPLATE_ALLOWED"), listed)
    except ValueError as error:
        known = ", ".join(TemplateFeature)
        raise SettingsError(
            f"{PREFIX}TEMPLATE_ALLOWED, {PREFIX}{forbidden}: {error}; known: {known}"
        ) from error


def _number(
    environ: Mapping[str, str], name: str, default: float, least: float, most: float
) -> float:
    text = environ.get(PREFIX + name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise SettingsError(f"{PREFIX}{name}={text!r} must be a number from {least:g} to {most:g}")
    return value
