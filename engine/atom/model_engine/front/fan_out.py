"""One request for several answers (`n`) to one request per answer: the engine core never sees n.

Pure; called by both engines' front ends.
"""

from __future__ import annotations

import msgspec

from atom.sampling_params import SamplingParams

_SEEDS = 1 << 64
_LEAST_SEED = -(1 << 63)


def params_of_each_answer(params: SamplingParams) -> tuple[SamplingParams, ...]:
    """`params.n` params for one answer each. Answer i has the seed `seed + i` (within 64 bits), so
    that the first is what n = 1 gives; without a seed each draws its own."""
    if params.n == 1:
        return (params,)
    if params.seed is None:
        return (msgspec.structs.replace(params, n=1),) * params.n
    seeds = [_wrapped(params.seed + index) for index in range(params.n)]
    return tuple(msgspec.structs.replace(params, n=1, seed=seed) for seed in seeds)


def _wrapped(seed: int) -> int:
    return (seed - _LEAST_SEED) % _SEEDS + _LEAST_SEED
