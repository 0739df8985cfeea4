"""Sampling defaults of the settings in generation_config.json, as Hugging Face reads them.

A default that no request could have is left out, with a line in the log. Called by `build_config`.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from atom.config_values import GENERATION_FIELDS, GenerationDefaults
from atom.errors import RequestError
from atom.sampling_params import SamplingParams

logger = logging.getLogger(__name__)


def generation_defaults(config: dict[str, Any]) -> GenerationDefaults:
    """Return the defaults of these settings. Greedy settings give a temperature of 0."""
    # Hugging Face's greedy: its other sampling fields are then without effect.
    greedy = not config.get("do_sample", True)
    asked = config | {"temperature": 0.0} if greedy else config
    names = ("temperature", "repetition_penalty") if greedy else GENERATION_FIELDS
    return GenerationDefaults(**{name: _sampling_default(name, asked.get(name)) for name in names})


def _sampling_default(name: str, value: Any) -> Any:
    """Return the value; None, with a line in the log, if every request with it would be refused."""
    if value is None:
        return None
    try:
        sound = msgspec.convert({name: value}, GenerationDefaults)
        SamplingParams(**{name: getattr(sound, name)})
    except (msgspec.ValidationError, RequestError) as error:
        logger.warning("generation_config.json: %s; the model's %s is not used", error, name)
        return None
    return value
