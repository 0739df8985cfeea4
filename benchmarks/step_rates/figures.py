"""Steps from published figures of this repository: decodes by rows and rates of prompts.

A figure is the mean of many equal steps, measured by `python -m benchmarks.gpu`. Prompts came as
steps of whole prompts; long ones in steps of half a prompt, of which the mean one is taken. Reads
files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atom.advisor.operations import ModelWork, model_work
from atom.advisor.step_shape import Chunk, StepShape
from atom.sizing import KV_ELEMENTS, ModelFacts, Sharding, online_scheme
from benchmarks.step_rates.fit import TimedStep
from benchmarks.step_rates.rates_table import TableSource
from benchmarks.workloads.shapes import SHAPES

_LONG_CHUNK = 16_384


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one device. date: of the newest; page: where they are published;
    host_bytes_per_second: of copies of pages between device and host."""

    device: str
    date: str
    page: str
    steps: tuple[TimedStep, ...]
    host_bytes_per_second: float = 0.0

    @property
    def source(self) -> TableSource:
        """Describe the figures as the source of a table."""
        rate = self.host_bytes_per_second
        return TableSource(self.device, self.date, {"page": self.page}, 0.0, rate)

    @classmethod
    def read(cls, path: Path) -> Figures:
        found = json.loads(path.read_text(encoding="utf-8"))
        steps = [step for model in found["models"] for step in _steps(model, found)]
        rate = found.get("host_bytes_per_second", 0.0)
        return cls(found["device"], found["date"], found["page"], tuple(steps), rate)


def _steps(model: Mapping[str, Any], page: Mapping[str, Any]) -> Iterator[TimedStep]:
    name, work = model["shape"].split("-mxfp4")[0].split("-awq")[0], _work(model)
    for rows, seconds in model["decode"].items():
        yield TimedStep(name, work, StepShape.decodes(int(rows), page["context"]), seconds)
    if "prompt_rate" in model:
        prompts, tokens = page["prompt"]
        yield TimedStep(
            name, work, _prompts(prompts, Chunk(0, tokens)), prompts * tokens / model["prompt_rate"]
        )
    if "long_rate" in model:
        middle = Chunk(_LONG_CHUNK // 2, _LONG_CHUNK)
        yield TimedStep(name, work, _prompts(1, middle), _LONG_CHUNK / model["long_rate"])


def _prompts(count: int, chunk: Chunk) -> StepShape:
    return StepShape(np.zeros(0, dtype=np.int64), 0, (chunk,) * count, count)


def _work(model: Mapping[str, Any]) -> ModelWork:
    facts = ModelFacts.from_hf_config(SHAPES[model["shape"]])
    if "quantization" in model:
        facts = facts.stored_as(online_scheme(model["quantization"]))
    return model_work(facts, KV_ELEMENTS["bf16"], Sharding(model.get("ranks", 1)))
