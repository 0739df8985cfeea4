"""Which of many configurations is the fastest, whatever they configure."""

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
    """Candidates with their cost, cheapest first; those that the card cannot run are left out."""
    timed: list[tuple[float, Config]] = []
    for candidate in candidates:
        try:
            timed.append((measure(candidate), candidate))
        except (OutOfResources, triton.CompilationError, RuntimeError) as error:
            print(f"    left out {candidate}: {str(error).splitlines()[0]}", file=sys.stderr)
    if not timed:
        raise ConfigError("no candidate configuration runs on this card; see the reasons above")
    return sorted(timed, key=lambda pair: pair[0])
