"""Card: the facts of an AMD GPU's architecture that matter to AITER."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# AITER has assembly for these alone of the cards that this project knows; gfx90a (MI200) is on
# lists of its documentation, and no object of its tree is for it.
ARCHITECTURES = ("gfx942", "gfx950")


@dataclass(frozen=True, slots=True)
class Card:
    """The card, as AITER knows it: `architecture` is its gfx name."""

    architecture: str

    @property
    def reasons_against(self) -> tuple[str, ...]:
        if self.architecture in ARCHITECTURES:
            return ()
        return (f"aiter has kernels for {' and '.join(ARCHITECTURES)}, not {self.architecture}",)

    @property
    def fp8(self) -> torch.dtype:
        """Return the e4m3 type of the card's matrix cores."""
        return torch.float8_e4m3fnuz if self.architecture == "gfx942" else torch.float8_e4m3fn

    @property
    def multiplies_fp4(self) -> bool:
        return self.architecture == "gfx950"
