"""A row of the table of other servers' flags: what their users type, and its effect here.

Knows no flag; `other_flags` and `refused_flags` have the rows, `flag_words` applies them to a line.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ANY_VALUE = "any value"  # among the values of an UNNEEDED flag: each changes nothing


class FlagVerdict(StrEnum):
    """SAME: another name of a flag of ours. UNNEEDED: taken, and changes nothing. REFUSED: an error
    with the remedy."""

    SAME = "same"
    UNNEEDED = "unneeded"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class FlagRow:
    """Map flags of other servers. note: our flag, or why nothing changes, or the remedy. values: of
    an UNNEEDED flag, those that change nothing, if it takes any; empty for a switch."""

    flags: tuple[str, ...]
    verdict: FlagVerdict
    note: str
    values: tuple[str, ...] = ()
