"""Say who owns a skip: a proof that another machine has by design has an owner; others are debts.

Debts that are accepted are listed in tests/accepted_debts.yaml with the reason; CI refuses others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import yaml


class Owner(Enum):
    """The owner of a skipped proof: another machine, another package, or another backend's case."""

    CARD = "a card (make test-gpu)"
    AITER = "AITER (make test-aiter)"
    BACKEND = "another backend's case of the same test"


# Reasons as tests give them: about the machine or the backend, never about a program to install.
_OWNERS = (
    (Owner.AITER, re.compile(r"aiter|^is for ", re.IGNORECASE)),
    (Owner.CARD, re.compile(r"\bGPUs?\b|\bthis card\b|NVIDIA's cards|graphs\b|the kernels'$")),
    (Owner.BACKEND, re.compile(r"native_cpu|torch_cpu|this backend|another backend|reference$")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AcceptedDebt:
    """A reason for skips that CI accepts, and why: `reason` is searched in a skip's reason."""

    reason: str
    why: str

    def covers(self, reason: str) -> bool:
        return re.search(self.reason, reason) is not None


def owner_of(reason: str) -> Owner | None:
    """Return who owns a skip for this reason, or None if it is a debt."""
    return next((owner for owner, pattern in _OWNERS if pattern.search(reason)), None)


def read_accepted(file: Path) -> list[AcceptedDebt]:
    """Read the list of accepted debts. Raises ValueError if an entry has no reason why."""
    entries = yaml.safe_load(file.read_text(encoding="utf-8")) or []
    for entry in entries:
        if set(entry) != {"reason", "why"} or not all(entry.values()):
            raise ValueError(f"{file.name}: an entry needs reason and why, and has {entry}")
    return [AcceptedDebt(**entry) for entry in entries]
