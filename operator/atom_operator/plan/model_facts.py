"""Model facts from the first source that has them: inline config, ConfigMap text, catalogue.

Pure: the ConfigMap's text is handed in, the catalogue is a folder of this package. A config that is
there but unusable is an error to report, not a reason to guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, cast

import yaml

from atom.bounded_input.bounded_json import SETTINGS, BoundedJsonError, parse_json
from atom.sizing import ModelFacts
from atom_operator.constants import Reason
from atom_operator.domain import FactsLookup


def facts_from_config(config: Mapping[str, Any], origin: str) -> FactsLookup:
    """Return the facts of a config.json; raises atom.sizing.ModelFactsError when it is unusable."""
    facts = ModelFacts.from_hf_config(config)
    return FactsLookup(facts, Reason.FITS, f"model facts from {origin}")


def facts_from_text(text: str, origin: str) -> FactsLookup:
    """Read the facts from a config.json's text; raises ValueError when it is not a JSON object, and
    atom.sizing.ModelFactsError when it is unusable."""
    try:
        config = parse_json(text, SETTINGS)
    except BoundedJsonError as error:
        raise ValueError(f"{origin} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{origin} must hold a JSON object, the model's config.json")
    return facts_from_config(config, origin)


@lru_cache(maxsize=256)
def facts_from_catalogue(source: str) -> FactsLookup:
    """Return the facts of a well-known source, or the remedy when it is not one."""
    config = _catalogue().get(source)
    if config is not None:
        return facts_from_config(config, "the operator's catalogue")
    return FactsLookup(
        None,
        Reason.MODEL_FACTS_UNKNOWN,
        f"the shape of {source} is unknown, so nothing was planned and the engine sizes itself; "
        "give its config.json in spec.model.config or spec.model.configRef",
    )


@cache
def _catalogue() -> Mapping[str, Mapping[str, Any]]:
    """Return the shapes of well-known models, as their published config.json files give them (the
    keys that a plan needs). A source is matched exactly."""
    folder = files("atom_operator.plan").joinpath("catalogue")
    pages = sorted((page for page in folder.iterdir()), key=lambda page: page.name)
    entries = [
        entry
        for page in pages
        if page.name.endswith(".yaml")
        for entry in cast("list[dict[str, Any]]", yaml.safe_load(page.read_text("utf-8"))["models"])
    ]
    return {source: entry["config"] for entry in entries for source in entry["sources"]}


def catalogue_config(source: str) -> Mapping[str, Any] | None:
    """Return the config.json of a well-known source; None for any other."""
    return _catalogue().get(source)


def catalogue_sources() -> tuple[str, ...]:
    """List every source that the catalogue knows."""
    return tuple(_catalogue())
