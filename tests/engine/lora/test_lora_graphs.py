"""Steps of rows with adapters that replay graphs say what eager ones do.

Graphs are played by functions, since only a GPU records any.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from atom.lora_config import LoraConfig
from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.runner.step_variant import StepVariant
from atom.speculative_config import SpeculativeConfig
from tests.engine.integration.core.test_warm_up import warmed
from tests.engine.lora.test_lora_parity import ADAPTERS, OPTIONS, lora_of
from tests.engine.lora.test_lora_steps import seeded
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.kernels.played_graphs import PlayedPool
from tests.support.models.lora_adapter import make_adapter
from tests.support.models.tiny_model import make_tiny_checkpoint

# Which steps have graphs, beside those of decodes, and whether rows carry drafts.
KINDS: dict[str, dict[str, Any]] = {
    "decodes": {},
    "prompts": {"prompts": True},
    "drafts": {"speculative": SpeculativeConfig(num_tokens=3, fewest_matched=1, adaptive=False)},
}


OPTIONS_OF_BOTH = {**OPTIONS, "max_num_seqs": 4, "backend": "torch_ref"}


class Replaying:
    """An engine whose steps replay played graphs; with_lora: of those that some row of had an
    adapter, how many were replayed, and how many ran eagerly."""

    def __init__(self, engine: CoreDriver, *, prompts: bool) -> None:
        self.engine = engine
        self.with_lora = {"replayed": 0, "eager": 0}
        self._steps: Any = engine.executor.runner.steps  # type: ignore[attr-defined]
        steps = self._steps
        steps.graphs = self._captured(prompts)
        replay, submit = steps._replay, steps.submit
        replayed: list[bool] = []

        def counted_replay(*args: Any) -> Any:
            step = replay(*args)
            replayed.append(step is not None)
            return step

        def counted_submit(batch: ScheduledBatch) -> Any:
            replayed.clear()
            step = submit(batch)
            has_prompts = batch.num_decodes < len(batch.slots)
            if steps._inputs.variant(batch).lora and (prompts or not has_prompts):
                self.with_lora["replayed" if any(replayed) else "eager"] += 1
            return step

        steps._replay, steps.submit = counted_replay, counted_submit

    def _captured(self, prompts: bool) -> Any:
        steps = self._steps
        every = "atom.model_engine.runner"
        state = steps.slots.device
        pool = PlayedPool(lambda: state.num_computed.fill_(9))
        with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
            # The reference computes no padding, so each number of rows and tokens has a bucket.
            for sizes in (
                "step_runner.bucket_sizes",
                "speculation.speculative_step_runner.token_sizes",
            ):
                patch.setattr(f"{every}.{sizes}", lambda most: list(range(1, most + 1)))
            graphs = steps.build_graphs(pool, prompts=prompts, widest=StepVariant(lora=True))
            said = graphs._host_ring.ring.said
            said[:, 0] = torch.arange(said.shape[2])
            if said.shape[1] > 4:
                said[:, 4] = 3
            graphs.capture(lambda share: None)
            if graphs.prompts is not None:
                graphs.prompts.capture(lambda share: None)
        return graphs


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LoraConfig]:
    folder = tmp_path_factory.mktemp("lora")
    checkpoint = make_tiny_checkpoint(folder / "model")
    adapters = [
        make_adapter(folder / str(number), checkpoint, **asked)
        for number, asked in enumerate(ADAPTERS.values(), 1)
    ]
    return checkpoint, lora_of(adapters, max_loras=2)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_eager_steps(served: tuple[Path, LoraConfig], kind: str) -> None:
    checkpoint, lora = served
    eager = CoreDriver(str(checkpoint), lora=lora, **OPTIONS_OF_BOTH)
    asked = seeded(eager.vocab_size, count=12)
    expected = eager.generate_each(asked)

    kinds = dict(KINDS[kind])
    prompts = kinds.pop("prompts", False)
    replaying = Replaying(
        CoreDriver(str(checkpoint), lora=lora, **OPTIONS_OF_BOTH, **kinds), prompts=prompts
    )
    assert replaying.engine.generate_each(asked) == expected
    assert replaying.with_lora["eager"] == 0
    assert replaying.with_lora["replayed"] > 10


def test_a_warmed_engine_answers_as_one_that_is_not(served: tuple[Path, LoraConfig]) -> None:
    checkpoint, lora = served
    cold = CoreDriver(str(checkpoint), lora=lora, **OPTIONS_OF_BOTH)
    warm = warmed(CoreDriver(str(checkpoint), lora=lora, **OPTIONS_OF_BOTH), [])
    asked = seeded(cold.vocab_size, count=6)
    assert warm.generate_each(asked) == cold.generate_each(asked)
