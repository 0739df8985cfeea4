"""A process that starts an engine, serves requests of every kind, and says which kernels these
were the first to need: `python -m tests.support.kernels.late_kernels CHECKPOINT DTYPE`, JSON on the
last line. In a process of its own, because kernels that other tests needed would not be needed
first.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from atom.sampling_params import SamplingParams
from atom.structured_outputs import StructuredOutputsParams
from benchmarks.measures.compiled_kernels import compiled_kernels
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.sampling_requests import mixed_requests


def every_kind_of_request(vocab_size: int, longest: int) -> list[tuple[list[int], SamplingParams]]:
    """Every sampling control, few and many at once, beside prompts up to the longest, which takes
    three steps."""
    draw = np.random.default_rng(7)
    plain = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    likely = SamplingParams(temperature=0.6, top_k=20, top_p=0.95, max_tokens=50, ignore_eos=True)
    scored = SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=2)
    lengths = [5, 200, 700, 4096, 4500, 5000, 6200, 512, 512, longest]
    prompts = [draw.integers(3, vocab_size, size=length).tolist() for length in lengths]
    return [
        *mixed_requests(vocab_size, 40),
        *[(prompt, plain) for prompt in prompts],
        *[(prompts[index % 3], likely) for index in range(70)],
        (prompts[1], scored),
    ]


def guided_request() -> tuple[list[int], SamplingParams]:
    shape = StructuredOutputsParams(regex="[a-z]{8}")
    return [5, 6, 7], SamplingParams(temperature=0.0, max_tokens=20, structured_outputs=shape)


def main() -> int:
    checkpoint, dtype = sys.argv[1:]
    options = {"max_num_seqs": 100, "max_num_batched_tokens": 8192, "max_model_len": 20_000}
    with compiled_kernels() as at_start:
        driver = CoreDriver(checkpoint, device="auto", dtype=dtype, **options)
    with compiled_kernels() as late:
        requests = every_kind_of_request(driver.vocab_size, 19_900)
        for request in requests:  # one after the other, then all at once
            driver.generate_each([request])
        driver.generate_each([*requests, guided_request()])
    print(json.dumps({"at_start": dict(at_start), "late": dict(late)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
