"""Prompts with pictures: the encoder's time beside its products, a second turn, and decode steps.

    python -m benchmarks.engines.images --shape qwen3-vl-2b --requests 64 --side 1024

Requests with one picture each are answered at once. The encoder's seconds in the engine are
compared with the time of its layers' products at the card's limit, and so are those of the encoder
alone, whose pixels are on the device. The same prompts, longer by a turn, must encode nothing.
Decode steps of rows whose positions images have shifted are timed beside rows of text, in turns.
Greedy tokens are compared with those of an engine without graphs. Random weights, offline. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atom.model_engine.executor.single import SingleDeviceExecutor
from atom.models.vision.encoder import ImageEncoder
from atom.sampling_params import SamplingParams
from atom.sizing.vision.facts import Grid, VisionFacts
from atom.utils.device import detect_device
from benchmarks.engines.offline_engine import OfflineEngine, free_memory
from benchmarks.measures.limits import ceilings
from benchmarks.workloads.seeing import (
    SEEING,
    SeeingPrompt,
    encoder_flops,
    seeing_prompt,
    square_grid,
    write_seeing,
)

_AROUND, _TURN = 16, 24  # tokens of text before and after a picture, and of another turn
_ROUNDS, _WARM_UP = 3, 16
_CONTEXT = 32_768

Figures = dict[str, Any]


class Seen:
    """An engine of a shape, with the requests of the benchmark."""

    def __init__(self, folder: Path, args: argparse.Namespace, *, eager: bool = False) -> None:
        """eager: without graphs."""
        self._answer = args.answer
        self.engine = OfflineEngine(
            str(folder),
            load_dummy=True,
            device=args.device,
            enforce_eager=eager,
            dtype=args.dtype,
            max_model_len=2048 if args.shape == "tiny" else _CONTEXT,
            max_num_seqs=args.requests,
            max_step_seconds=0.0,
        )
        vision = self.engine.config.model.facts.vision
        assert vision is not None
        self.facts: VisionFacts = vision
        self.grid: Grid = square_grid(vision, args.side)
        self.count = args.requests

    def prompts(self, first_seed: int, count: int | None = None) -> list[SeeingPrompt]:
        """Draw the requests' prompts, each with a picture that no other has. count: of them, None
        for all."""
        draw = np.random.default_rng(first_seed)
        return [
            seeing_prompt(
                self.facts,
                self.grid,
                (self.text(_AROUND, draw), self.text(_AROUND, draw)),
                first_seed + number,
            )
            for number in range(self.count if count is None else count)
        ]

    def text(self, length: int, draw: np.random.Generator) -> list[int]:
        """Draw tokens of a text, none of which stands for an image."""
        tokens = self.engine.random_prompt(length, draw)
        return [token - (token == self.facts.image_token_id) for token in tokens]

    def answers(self, prompts: Sequence[SeeingPrompt]) -> tuple[list[list[int]], float]:
        """Answer prompts at once; their greedy tokens, and the seconds that it takes."""
        params = SamplingParams(temperature=0.0, max_tokens=self._answer, ignore_eos=True)
        found = {
            self.engine.add(each.token_ids, params, images=each.images): list[int]()
            for each in prompts
        }
        began = time.perf_counter()
        while self.engine.has_work():
            for number, run in self._step():
                found[number] += run
        return list(found.values()), time.perf_counter() - began

    def encoded(self) -> tuple[int, float]:
        """Return the number of images encoded so far, and the seconds that their encoding took."""
        stats = self.engine.scheduler.stats()
        return stats.images_encoded_total, stats.encoder_seconds_total

    def step_seconds(self, prompts: Sequence[SeeingPrompt]) -> float:
        """Measure a decode step while all of the prompts decode."""
        params = SamplingParams(temperature=0.0, max_tokens=self._answer, ignore_eos=True)
        for each in prompts:
            self.engine.add(each.token_ids, params, images=each.images)
        produced: dict[int, int] = {}
        while len(produced) < len(prompts):
            self._count(produced)
        steps, began = 0, time.perf_counter()
        while max(produced.values()) < self._answer - 2:
            self._count(produced)
            steps += 1
        seconds = (time.perf_counter() - began) / max(1, steps)
        self.engine.run()
        return seconds

    def _count(self, produced: dict[int, int]) -> None:
        for number, run in self._step():
            produced[number] = produced.get(number, 0) + len(run)

    def _step(self) -> Iterable[tuple[int, list[int]]]:
        """Run a step, and return the new tokens of each request."""
        result = self.engine.step()
        return () if result is None else result.runs()


def encoder_of(engine: OfflineEngine) -> ImageEncoder:
    """Return the encoder of an engine in this process."""
    assert isinstance(engine.executor, SingleDeviceExecutor)
    encoder = engine.executor.runner.steps.model.vision
    assert encoder is not None
    return encoder


def encoder_alone(seen: Seen, pictures: int) -> float:
    """Measure the seconds of one picture while some are encoded at once, their pixels there."""
    encoder = encoder_of(seen.engine)
    device = encoder.outputs.device
    shape = seen.facts.pixel_shape(seen.grid)
    pixels = [torch.randn(shape, device=device) for _ in range(pictures)]
    grids = [seen.grid] * pictures
    best = float("inf")
    with torch.inference_mode():
        for _ in range(_ROUNDS + 1):
            _wait(device)
            began = time.perf_counter()
            encoder.encode(pixels, grids)
            _wait(device)
            best = min(best, time.perf_counter() - began)
    return best / pictures


def measure_encoder(seen: Seen, prompts: Sequence[SeeingPrompt]) -> Figures:
    """Answer prompts whose pictures are new, after some others, and then with another turn."""
    seen.answers(seen.prompts(1_000, min(seen.count, _WARM_UP)))
    before = seen.encoded()
    first, seconds = seen.answers(prompts)
    after = seen.encoded()
    images, encoding = after[0] - before[0], after[1] - before[1]
    draw = np.random.default_rng(5)
    longer = [
        SeeingPrompt([*each.token_ids, *answer, *seen.text(_TURN, draw)], each.images)
        for each, answer in zip(prompts, first, strict=True)
    ]
    _, again_seconds = seen.answers(longer)
    flops = encoder_flops(seen.facts, seen.grid)
    outputs = encoder_of(seen.engine).outputs
    limit = ceilings(outputs.device, outputs.dtype).flops_per_second
    most = seen.facts.largest_tokens(seen.engine.config.model.max_model_len)
    together = max(1, min(len(prompts), most // seen.facts.image_tokens(seen.grid)))
    alone = encoder_alone(seen, together)
    return {
        "images": images,
        "image_tokens": seen.facts.image_tokens(seen.grid),
        "run_seconds": seconds,
        "encode_ms_per_image": 1e3 * encoding / max(1, images),
        "encode_share_of_limit": flops * images / limit / encoding if encoding else 0.0,
        "alone_images_at_once": together,
        "alone_ms_per_image": 1e3 * alone,
        "alone_share_of_limit": flops / limit / alone,
        "one_alone_ms": 1e3 * encoder_alone(seen, 1),
        "second_turn_images_encoded": seen.encoded()[0] - after[0],
        "second_turn_seconds": again_seconds,
        "answers": first,
    }


def measure_steps(seen: Seen, pictures: Sequence[SeeingPrompt]) -> Figures:
    """Time decode steps of rows with pictures and of rows of text with equal contexts, in turns."""
    best = {"image_rows_step_ms": float("inf"), "text_rows_step_ms": float("inf")}
    for turn in range(_ROUNDS):
        draw = np.random.default_rng(turn)
        texts = [SeeingPrompt(seen.text(len(each.token_ids), draw), ()) for each in pictures]
        for name, prompts in (("image_rows_step_ms", pictures), ("text_rows_step_ms", texts)):
            best[name] = min(best[name], 1e3 * seen.step_seconds(prompts))
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(folder: Path, args: argparse.Namespace) -> Figures:
    """Measure one shape."""
    seen = Seen(folder, args)
    prompts = seen.prompts(0)
    found = measure_encoder(seen, prompts) | measure_steps(seen, prompts)
    seen.engine.close()
    del seen
    free_memory()
    answers = found.pop("answers")
    if args.compare:
        plain = Seen(folder, args, eager=True)
        eager, _ = plain.answers(prompts)
        plain.engine.close()
        pairs = list(zip(answers, eager, strict=True))
        found["equal_answers"] = sum(one == other for one, other in pairs)
        found["equal_tokens"] = sum(
            a == b for pair in pairs for a, b in zip(*pair, strict=True)
        ) / sum(map(len, answers))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", choices=sorted(SEEING), default="qwen3-vl-2b")
    parser.add_argument("--layers", type=int, help="of the decoder; default: all")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--side", type=int, default=1024, help="of a picture in pixels")
    parser.add_argument("--answer", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", help="of the model, for equal tokens float32")
    parser.add_argument(
        "--compare", action="store_true", help="compare tokens with an engine without graphs"
    )
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(write_seeing(args.shape, Path(folder), args.layers), args)
    device = detect_device(args.device).name
    print(json.dumps({"shape": args.shape, "side": args.side, "device": device, **found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
