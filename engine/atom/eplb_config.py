"""Configuration of expert load balancing (EPLB): --enable-eplb and --eplb-config.

The names are upstream's and vLLM's.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from atom.errors import ConfigError

_WINDOW_STEPS, _INTERVAL_STEPS = 1000, 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class EPLBConfig:
    """Settings of the expert load balancer. interval_steps: between two looks at where experts are;
    window_steps: before a look, in which tokens are counted; redundant: second copies of experts in
    each layer."""

    window_steps: int = _WINDOW_STEPS
    interval_steps: int = _INTERVAL_STEPS
    redundant: int = 0


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    window_size: int = _WINDOW_STEPS
    step_interval: int = _INTERVAL_STEPS
    num_redundant_experts: int = 0


def eplb_config(enabled: bool, text: str | None) -> EPLBConfig | None:
    """Return the configuration that the two flags give together; None if experts are not
    rebalanced. Raises `ConfigError`."""
    if not enabled:
        if text is not None:
            raise ConfigError("--eplb-config is for --enable-eplb; add that, or leave it out")
        return None
    try:
        asked = _Document() if text is None else msgspec.json.decode(text, type=_Document)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"--eplb-config {text}: {error}; use JSON such as "
            '{"window_size": 1000, "step_interval": 3000, "num_redundant_experts": 0}'
        ) from error
    if not 1 <= asked.window_size <= asked.step_interval:
        raise ConfigError(
            f"--eplb-config: window_size {asked.window_size} must be 1 or more, and at most "
            f"step_interval, {asked.step_interval}"
        )
    if asked.num_redundant_experts < 0:
        raise ConfigError(
            f"--eplb-config: num_redundant_experts {asked.num_redundant_experts} must be 0 or more"
        )
    return EPLBConfig(
        window_steps=asked.window_size,
        interval_steps=asked.step_interval,
        redundant=asked.num_redundant_experts,
    )
