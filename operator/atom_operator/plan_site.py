"""The site of `plan --values FILE`: the chart's settings for this cluster. Pure.

The same file that `helm install --values` gets, so that a manifest is judged in CI as the installed
operator will judge it. Only settings that decide a plan are read; the chart's schema checks the
rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom.sizing import MAX_TENSOR_PARALLEL
from atom_operator.integration_values import EngineFeature, Site, SiteAddresses, template_features


class ValuesError(ValueError):
    """A value that no plan can be made with; the message names it."""


def site_of_values(values: Mapping[str, Any]) -> Site:
    """Build a Site from `values`; the chart's defaults fill the rest. Raises ValuesError."""
    engine, scaling = _section(values, "engine"), _section(values, "autoscaling")
    template = _section(values, "template")
    allowed = map(str, template.get("allowed") or ())
    try:
        forbidden, allowed_values = template_features(allowed, template.get("forbidden"))
        return Site(
            addresses=SiteAddresses(prometheus=scaling.get("prometheusAddress") or None),
            engine_tensor_parallel=int(engine.get("maxTensorParallel", MAX_TENSOR_PARALLEL)),
            engine_multi_node=bool(engine.get("multiNode", True)),
            engine_architectures=tuple(map(str, engine.get("architectures") or ())),
            engine_features=frozenset(map(EngineFeature, engine.get("features") or ())),
            defaults=_section(values, "defaults") or None,
            template_forbidden=forbidden,
            template_values=allowed_values,
        )
    except (TypeError, ValueError) as error:
        raise ValuesError(f"{error}; see the chart's README") from error


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name) or {}
    if not isinstance(section, Mapping):
        raise ValuesError(f"{name} must be an object, got {section!r}")
    return section
