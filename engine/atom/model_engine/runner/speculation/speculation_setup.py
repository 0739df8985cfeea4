"""SpeculationSetup: the parts of a model runner that exist because rows may carry drafts.

Without speculation it holds only the model's own spec, so ModelRunner can use one object for any
configuration. Owned by ModelRunner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from atom.checkpoint import open_checkpoint
from atom.config import Config
from atom.model_engine.runner.pages.layer_caches import CacheShape
from atom.model_engine.runner.pooling_step_runner import PoolingStepRunner
from atom.model_engine.runner.speculation.speculative_step_runner import SpeculativeStepRunner
from atom.model_engine.runner.speculation.time_steps import time_steps
from atom.model_engine.runner.step_runner import StepRunner
from atom.model_engine.wire.engine_protocol import TimedStep
from atom.model_loader.weight_loader import check_model, load_model
from atom.model_ops.attention import CachedLayer
from atom.model_ops.backends.interface import Ops
from atom.model_ops.linear import Build
from atom.models.decoder.causal_lm import CausalLM, attention_layers
from atom.models.decoder.placed_modules import PlacedModules, placed_model
from atom.models.decoder.spec import ModelSpec
from atom.models.draft_models.build_draft import (
    build_draft,
    drafted_spec,
    placed_draft,
    placed_with_mtp,
)
from atom.models.draft_models.draft_model import DraftModel
from atom.sizing.cache_groups import CacheGroup
from atom.sizing.kv_layout import Speculation
from atom.utils.device import Device


class SpeculationSetup:
    """Build, load and run the drafter, if there is one. spec: the model's, as one of `ranks` ranks
    computes it; draft: the drafting layers, once they are built."""

    def __init__(self, config: Config, ranks: int) -> None:
        self._config = config
        self._ranks = ranks
        spec, draft = drafted_spec(config)
        self.spec = spec.on_rank(ranks)
        self._draft_spec = draft and draft.on_rank(ranks)
        self._by_layers = config.speculative is not None and config.speculative.by_layers
        self.draft: DraftModel | None = None

    @property
    def is_on(self) -> bool:
        """Return whether rows may carry drafts."""
        return self._config.speculative is not None

    @property
    def cached(self) -> Speculation:
        """Return the speculation facts that size the KV cache."""
        config = self._config
        facts = None if config.draft is None else config.draft.facts
        tokens = config.scheduler.num_speculative_tokens
        return Speculation(tokens, facts, by_layers=self._by_layers)

    def all_layers(self) -> ModelSpec:
        """Return the model's spec with the layers that draft, as operations are concerned."""
        if not self._by_layers:
            return self.spec.with_all_layers()
        drafting = self._draft_spec.layers if self._draft_spec else self.spec.mtp_layers
        return self.spec.with_all_layers(*drafting)

    def build(self, model: CausalLM, build: Build) -> None:
        """Make the layers that draft, their weights not yet filled."""
        if self._by_layers:
            self.draft = build_draft(self.spec, self._draft_spec, model, build)

    def with_weights_of(self, config: Config) -> SpeculationSetup:
        """Set up the same for another checkpoint, with the existing layers."""
        other = SpeculationSetup(config, self._ranks)
        other.draft = self.draft
        return other

    def models(self, model: CausalLM) -> tuple[CausalLM | DraftModel, ...]:
        """Return the model, followed by its drafting layers if there are any."""
        return (model,) if self.draft is None else (model, self.draft)

    def attention_layers(self, model: CausalLM) -> list[CachedLayer]:
        """List the attention layers in order, the drafting ones after the model's."""
        return [layer for each in self.models(model) for layer in attention_layers(each)]

    def read_weights(self, model: CausalLM, progress: Callable[[float], None]) -> None:
        """Read the weights of the model and of its drafter from their checkpoints."""
        config = self._config
        if config.draft is not None and self.draft is not None:
            checkpoint = open_checkpoint(config.draft.path)
            load_model(placed_draft(self.draft, checkpoint), checkpoint, lambda share: None)
        load_model(self._placed(model), open_checkpoint(config.model.path), progress)

    def check_weights(self, model: CausalLM) -> None:
        """Match the files of the model's checkpoint with the model's parameters, before reading
        them. Raises `ModelError`."""
        check_model(self._placed(model), open_checkpoint(self._config.model.path))

    def _placed(self, model: CausalLM) -> PlacedModules:
        """Return the modules that the model's own checkpoint fills."""
        if self.draft is None or self._config.draft is not None:
            return placed_model(model)
        return placed_with_mtp(model, self.draft)

    def step_runner(
        self, model: CausalLM, ops: Ops, device: Device, groups: Sequence[CacheGroup]
    ) -> StepRunner:
        """Build the runner of the model's steps."""
        config = self._config
        parts = model, ops, config, device, groups
        if config.model.pooling is not None:
            return PoolingStepRunner(config.model, *parts)
        if not self.is_on:
            return StepRunner(*parts)
        steps = SpeculativeStepRunner(*parts)
        if self.draft is not None:
            steps.draft_with(self.draft)
        return steps

    def timed_steps(self, steps: StepRunner, cache: CacheShape) -> list[TimedStep]:
        """Time steps, as the basis of the rows' numbers of drafts, if graphs run steps with any."""
        graphs, asked = steps.graphs, self._config.speculative
        if graphs is None or graphs.verify is None or asked is None or not asked.adaptive:
            return []
        return time_steps(steps, self._config, cache, graphs.verify.most_tokens)
