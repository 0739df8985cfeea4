"""A double of AMD's AITER, made of its contracts and of nothing of ours.

`installed(...)` puts a package `aiter` of one of three generations into sys.modules. Its functions
have the signatures of signatures.json, which was read from AITER's source text; a call that the
real one would refuse, or would compute something else for, is a ContractError: unknown keywords,
positions that changed their meaning, dtypes, shapes, strides, alignment, metadata that is missing
or of another step. Otherwise the documented result is computed, in float32, on the CPU.

What is documented nowhere is refused rather than guessed: no strides, no float32 inputs.
"""

from tests.support.fake_aiter.binding import TRAPS, Call, ContractError
from tests.support.fake_aiter.install import GENERATIONS, FakeAiter, installed

__all__ = ["GENERATIONS", "TRAPS", "Call", "ContractError", "FakeAiter", "installed"]
