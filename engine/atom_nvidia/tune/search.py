"""Find the fastest of many configurations of any kind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import triton
from triton.runtime.errors import OutOfResources

from atom.errors import ConfigError
from atom.model_ops.backends.triton_ops.compile.tuning import (
    DecodeConfig,
    PrefillConfig,
    SkinnyConfig,
    SplitKConfig,
)

Config = TypeVar("Config", bound=SkinnyConfig | SplitKConfig | DecodeConfig | PrefillConfig)


def best(
    candidates: Sequence[Config], measure: Callable[[Config], float]
) -> list[tuple[float, Config]]:
    """Return candidates with their cost, cheapest first, without those that the card cannot run."""
    timed: list[tuple[float, Config]] = []
    for candidate in candidates:
        try:
            timed.append((measure(candidate), candidate))
        except (OutOfResources, triton.CompilationError, RuntimeError) as error:
            print(f"    left out {candidate}: {str(error).splitlines()[0]}", file=sys.stderr)
    if not timed:
        raise ConfigError("no candidate configuration runs on this card; see the reasons above")
    return sorted(timed, key=lambda pair: pair[0])
