"""StepVariant: the kinds of rows that change how layers compute a step.

A captured graph is found by its variant, and an eager step is placed by the same value. A further
kind of rows (images, keys and values of another engine) is one field here. The runner and its
graphs pass the value on and never read the fields.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import product

from atom.config import Config
from atom.model_ops.backends import ResolvedOps


@dataclass(frozen=True, slots=True)
class StepVariant:
    """Say which kinds of rows a step may have besides plain ones. lora: rows with an adapter."""

    lora: bool = False

    @classmethod
    def served_by(cls, config: Config) -> StepVariant:
        """Return the widest variant that an engine of this configuration serves."""
        return cls(lora=config.lora is not None)

    @classmethod
    def captured_by(cls, resolved: ResolvedOps) -> StepVariant:
        """Return the widest variant whose steps these operations can run in a captured graph."""
        return cls(lora=resolved.captures_lora)

    def narrower(self) -> tuple[StepVariant, ...]:
        """List the variants with some or all of these kinds of rows, plain rows first."""
        choices = [
            (False, True) if getattr(self, field.name) else (False,) for field in fields(self)
        ]
        return tuple(StepVariant(*chosen) for chosen in product(*choices))


PLAIN = StepVariant()
