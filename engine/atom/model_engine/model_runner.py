"""ModelRunner: one device — weights, KV cache, and the execution of scheduled batches.

Called by an executor: `initialize` once, then `submit` and `collect` per step.
It knows no queues and no requests beyond the rows that a batch describes. Nothing is written back
into the configuration: what start-up finds out is returned as an EngineReport.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import msgspec
import torch

from atom.collectives.expert_links import ExpertLinks
from atom.collectives.group import ALONE, Group
from atom.config import Config
from atom.model_engine.control import MovePages
from atom.model_engine.runner import kv_cache
from atom.model_engine.runner.chosen_ops import ElementTypes, chosen_ops
from atom.model_engine.runner.element_types import kv_dtype, kv_element, model_dtype
from atom.model_engine.runner.engine_report import Found, engine_report
from atom.model_engine.runner.expert_load_balancer import ExpertLoadBalancer
from atom.model_engine.runner.expert_parallel import expert_ranks, open_dispatch
from atom.model_engine.runner.lora_adapters import LoraAdapters
from atom.model_engine.runner.model_builder import ModelBuilder
from atom.model_engine.runner.pages.canonical_pages import CachedLayers, Share
from atom.model_engine.runner.pages.host_tier import open_tier
from atom.model_engine.runner.pages.layer_caches import LayerCaches
from atom.model_engine.runner.pages.transferred_pages import TransferredPages
from atom.model_engine.runner.predicted_memory import PredictedMemory, sharding_of
from atom.model_engine.runner.rank_device import rank_device
from atom.model_engine.runner.self_check import CheckedModel, SelfCheck
from atom.model_engine.runner.sleep.lent_device import LentDevice
from atom.model_engine.runner.sleep.weights_in_place import read_in_place
from atom.model_engine.runner.speculation.speculation_setup import SpeculationSetup
from atom.model_engine.runner.step_graphs import Progress, StepGraphs, capture
from atom.model_engine.runner.step_runner import StepRunner
from atom.model_engine.runner.warm_up import describe_start, run_largest_steps, warm_up
from atom.model_engine.wire.engine_protocol import EngineReport
from atom.model_ops.all_reduce import with_all_reduce
from atom.model_ops.attention import CachedLayer
from atom.model_ops.linear import Build
from atom.model_ops.lora import with_lora
from atom.model_ops.parallel import Ranks
from atom.models.decoder.causal_lm import CausalLM, held_bytes
from atom.models.decoder.layer_kinds import one_of_each_kind
from atom.models.registry import counted, support_model_arch_dict
from atom.sizing.kv_layout import kv_layout
from atom.utils.default_dtype import default_dtype
from atom.utils.device import peak_bytes

__all__ = ["ModelRunner", "support_model_arch_dict"]

logger = logging.getLogger(__name__)


class ModelRunner:
    def __init__(
        self,
        config: Config,
        group: Group = ALONE,
        links: ExpertLinks | None = None,
        pages: int | None = None,
        transfers: int | None = None,
    ) -> None:
        """group: of the ranks that share the model's copy; links: to ranks of data parallelism that
        share experts; pages, transfers: the descriptors of memory that the group shares for pages
        of the KV cache, if there is such a tier, and of exchanges with other engines."""
        self._share = Share(group.rank, group.size, transfers)
        self._transferred: TransferredPages | None = None
        self._asked_num_seqs = config.scheduler.max_num_seqs
        self._group = group
        self._experts = expert_ranks(config)
        self._device = rank_device(config)
        self._others = kv_cache.others_bytes(self._device)
        self._dtype = model_dtype(config, self._device)
        with default_dtype(self._dtype):  # in which a class without a family counts its tensors
            self._speculation = SpeculationSetup(config, group.size)
        config = replace(config, model=counted(config.model, self._speculation.spec))
        self._config = config
        self._exchange = None
        if links is not None and self._experts is not None:
            self._exchange = open_dispatch(config, links, self._experts, self._dtype)
        self._kv_dtype = kv_dtype(config, self._dtype, self._device)
        kept = config.model.facts, kv_element(self._kv_dtype), group.size, self._speculation.cached
        self._layout = kv_layout(*kept, config.cache.block_size)
        self.tier = open_tier(config, self._layout, self._device, group, pages)
        parts = self._speculation.all_layers(), ElementTypes(self._dtype, self._kv_dtype)
        self._resolved = chosen_ops(config, *parts, self._device.type)
        self._graphs = StepGraphs(config, self._resolved, is_gpu=self._device.is_gpu)
        if group.size > 1 and self._resolved.join is not None:
            row_bytes = config.model.facts.hidden_size * self._dtype.itemsize
            self._group = self._resolved.join(group, self._device.torch_device, row_bytes)
        ops = self._resolved.ops
        self._lora_ops = ops if config.lora is None else with_lora(ops)
        self._ops = with_all_reduce(self._lora_ops, self._group)
        place = Ranks(self._group.size, self._group.rank), self._group, self._experts
        build = Build(self._ops, *place, self._exchange, in_tree=config.execution.reproducible)
        self._builder = ModelBuilder(build, self._dtype)
        redundant = self._experts.redundant if self._experts else 0
        sharding, expands = sharding_of(config, group.size, redundant), self._resolved.expands
        self._predicted = PredictedMemory(
            config, self._device, sharding, self._dtype.itemsize, expands
        )
        self._model: CausalLM
        self.adapters: LoraAdapters | None = None
        self.steps: StepRunner
        cache = kv_cache.Place(self._kv_dtype, self._device.torch_device)
        self._caches = LayerCaches(config, self._layout, cache, self._attention_layers)
        self._lent: LentDevice | None = None
        self._after_layers: Callable[[], None] | None = None
        self._is_asleep = False

    # ---- start-up -----------------------------------------------------------------------------

    @torch.inference_mode()
    def initialize(self, progress: Progress) -> EngineReport:
        """Load the weights, size and allocate the KV cache, and return the report.
        Raises `ModelError` or `ConfigError`: before reading weights that cannot fit."""
        if not self._device.is_gpu:
            torch.set_num_threads(self._device.threads())
        self._bound_sequences()
        config = self._config
        predicted = self._predicted
        expected = predicted.weights_bytes(), predicted.activation_bytes(), self._tier_bytes()
        predicted.plan_cache(self._layout, *expected)
        self._build()
        if self._device.is_gpu and config.sleep.enabled:
            self._lent = LentDevice(self._device.torch_device, self._held_bytes())
        finish_compiling = self._compile_ahead(progress)
        check = self._due_check()
        with nullcontext() if check is None else check.keeping_originals():
            self._load(progress)
        weights_bytes = self._held_bytes()
        self.steps = self._step_runner()
        if finish_compiling is not None:
            finish_compiling()
        progress("sizing the KV cache", 0.0)
        activations = self._activation_bytes()
        share = config.cache.gpu_memory_utilization
        overhead = kv_cache.overhead_bytes(self._device, weights_bytes, self._others, share)
        overhead += self._graphs.measured_bytes(self.steps) + self._tier_bytes()
        self._caches.release()
        budget = kv_cache.agreed(
            self._predicted.plan_cache(self._layout, weights_bytes, activations, overhead),
            self._group,
            self._device.torch_device,
            config.model.max_model_len,
        )
        if check is not None:
            check.run(CheckedModel(self.steps, self._caches, self._few_layers), progress)
            check.conclude(self._all_say)
        self._caches.size = budget.num_blocks, budget.num_checkpoints
        self._take_cache()
        pool = self._lent.graphs_id if self._lent else None
        self.steps.graphs = self._graphs.build(self.steps, pool)
        capture(self.steps.graphs, progress, self._warm_up if self._device.is_gpu else None)
        self._bind_tier()
        found = Found(
            self._device, self._dtype, self._kv_dtype, self._resolved.chosen,
            asked_num_seqs=self._asked_num_seqs,
            weights_bytes=weights_bytes,
            peak_bytes=weights_bytes + activations + overhead,
        )  # fmt: skip
        report = engine_report(self._config, found, budget)
        if self._lent is not None:
            self._lent.wait()
        timed = self._speculation.timed_steps(self.steps, self._caches.shape(budget.num_blocks))
        tier = None if self.tier is None else self.tier.report()
        return msgspec.structs.replace(report, timed_steps=timed, host_tier=tier)

    def call_after_layers(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every layer of a step, if the host waits for layers."""
        if self._device.is_gpu:
            return  # they are only queued there, and a graph replays them without the host
        self._after_layers = callback
        for layer in self._attention_layers():
            layer.register_forward_hook(lambda *_: callback())

    @property
    def steps_behind(self) -> int:
        """Return how many steps the host may be behind: none where a submit computes everything."""
        return 1 if self._device.is_gpu else 0

    def _compile_ahead(self, progress: Progress) -> Callable[[], None] | None:
        """Begin to compile the kernels of every kind of step in parallel, unless an equal start has
        done so; return a function that waits for the end. Weights are not read yet: zeros serve."""
        config, warmup = self._config, self._resolved.warmup_compile
        # A proposer's inputs, and the ranks' exchanged tensors, are results of kernels.
        if not self._device.is_gpu or self._speculation.is_on or self._exchange is not None:
            return None
        device, start = self._device.torch_device, describe_start(config)
        if warmup is None or self._all_say(warmup.is_done(device, start)):
            return None
        progress("compiling kernels", 0.0)
        for parameter in self._model.parameters():
            parameter.data.zero_()
        cache = self._caches.shape(-(-config.model.max_model_len // config.cache.block_size))
        self._caches.allocate(cache.num_blocks)
        self.steps = self._step_runner()  # of the warm-up compile alone
        try:
            with (
                self._few_layers(),
                warmup.steps(device, start, self._device.threads()) as finish,
            ):
                self._graphs.compile_ahead(self.steps)
                warm_up(self.steps, config, cache, partial(progress, "compiling kernels"))
        except Exception:  # a start without is slower, and no other
            logger.warning("kernels are compiled as steps need them", exc_info=True)
            return None
        finally:
            self._caches.release()
        return finish

    def _due_check(self) -> SelfCheck | None:
        """Return the check of this start's kernels; None if it is not due."""
        spaces = self._resolved.ops, self._lora_ops, self._ops
        check = SelfCheck(self._config, self._resolved, spaces, self._device, self._dtype)
        # Ranks that share experts run the same steps, and do not know each other's records.
        is_due = check.is_due(self._all_say, with_others=self._exchange is not None)
        return check if is_due else None

    def _few_layers(self) -> AbstractContextManager[None]:
        """Return a context in which the model runs through one layer of each kind, if it may:
        drafters, ranks that share experts, and classes of transformers need every layer."""
        fallback = self._config.model.facts.is_fallback
        if self._speculation.is_on or self._exchange is not None or fallback:
            return nullcontext()
        return one_of_each_kind(self._model, [group.layers for group in self._layout.groups])

    def _all_say(self, answer: bool) -> bool:
        """Return whether every rank of the group says yes: they run their steps together."""
        return bool(kv_cache.least(self._group, self._device.torch_device, int(answer)))

    def _warm_up(self, progress: Progress) -> None:
        cache = self._caches.shape(self._caches.size[0])
        with self._few_layers():
            warm_up(self.steps, self._config, cache, lambda share: progress("warming up", share))

    def _build(self) -> None:
        """Make the model, its weights not yet filled, and read its adapters, which may not fit
        it."""
        config = self._config
        self._model = self._builder.make(self._speculation, self._device.torch_device)
        if config.lora is not None:
            before = self.adapters
            self.adapters = LoraAdapters(
                self._model, config.lora, self._dtype, config.model.hf_config
            )
            if before is not None:  # those of now, were they loaded at run time
                self.adapters.keep_all(before)
            else:
                for number, module in enumerate(config.lora.modules, 1):
                    self.adapters.keep(number, self.adapters.read(module.folder))

    def _load(self, progress: Progress) -> None:
        progress("loading weights", 0.0)
        report = partial(progress, "loading weights")
        self._builder.fill(self._model, self._speculation, self._config, report)
        if self.adapters is not None:
            self.adapters.attach(self._device.torch_device)
        if self._lent is not None:
            self._lent.take_weights(self._speculation.models(self._model))

    def _step_runner(self) -> StepRunner:
        groups = self._layout.groups
        steps = self._speculation.step_runner(self._model, self._ops, self._device, groups)
        steps.adapters = self.adapters
        return steps

    def _held_bytes(self) -> int:
        return sum(held_bytes(model) for model in self._speculation.models(self._model))

    def _attention_layers(self) -> list[CachedLayer]:
        """Return the layers of the model and its drafter that keep something of sequences."""
        return self._speculation.attention_layers(self._model)

    def _take_cache(self) -> None:
        """Allocate the cache that steps run on, in a releasable pool if the device is lent."""
        if self._lent is None:
            self._caches.allocate(*self._caches.size)
            return
        with self._lent.taking_cache() as tensors:
            tensors += self._caches.allocate(*self._caches.size)

    def _bind_tier(self) -> None:
        """Let pages be moved from and to the cache that the layers hold now."""
        if self.tier is not None:
            self.tier.bind(self._cached_layers(), self._caches.size[1])

    def _cached_layers(self) -> CachedLayers:
        facts, layers = self._config.model.facts, self._attention_layers()
        kept = (*facts.layers, *self._speculation.cached.proposing_layers(facts))
        return CachedLayers(layers, self._layout.groups, kept, self._resolved.chosen)

    def _tier_bytes(self) -> int:
        """Return the device memory that a tier of the KV cache takes: on the CPU the tier itself is
        in it."""
        if self.tier is None:
            return 0
        return self.tier.staging_bytes if self._device.is_gpu else self._config.tier_bytes

    @torch.inference_mode()
    def move_pages(self, call: MovePages) -> None:
        """Copy pages between the cache and the host's memory, in the order of the steps."""
        assert self.tier is not None, "pages are moved where there is a tier"
        self.tier.move(call)

    def transferred_pages(self) -> TransferredPages:
        """Return the pages of the cache that the layers hold now, for other engines."""
        if self._transferred is None:
            self._transferred = TransferredPages(
                self._cached_layers(),
                self._caches.size[1],
                self._share,
                self._device.torch_device,
            )
        return self._transferred

    def _bound_sequences(self) -> None:
        """Let no more sequences run than may keep their states: every rank the same number."""
        count = self._predicted.running_sequences(self._layout, self._group)
        if count == self._config.scheduler.max_num_seqs:
            return
        self._config = self._config.with_max_num_seqs(count)
        self._predicted = replace(self._predicted, config=self._config)
        self._caches = replace(self._caches, config=self._config)
        self._speculation = SpeculationSetup(self._config, self._group.size)

    def _activation_bytes(self) -> int:
        """Return the peak of one full step: measured on a GPU, predicted on the CPU, whose
        allocator keeps no peak and where a full step could take minutes."""
        if not self._device.is_gpu:
            return self._predicted.activation_bytes()
        config = self._config
        blocks = -(-config.model.max_model_len // config.cache.block_size)
        # Blocks of one sequence, shared by all rows and groups: no part of the measurement.
        self._caches.allocate(blocks)
        cache = self._caches.shape(blocks)
        return peak_bytes(partial(run_largest_steps, self.steps, config, cache, self._few_layers))

    # ---- sleep --------------------------------------------------------------------------------

    @torch.inference_mode()
    def sleep(self, level: int) -> None:
        """Release the device's memory of the KV cache and the weights, and of the graphs if
        addresses are not kept. level 1 keeps the weights in the host's memory, 2 reads them again
        at wake-up."""
        before = self._device.process_bytes()
        self._is_asleep = True
        if self.tier is not None:
            self.tier.unbind()
        if self._lent is not None:
            models = self._speculation.models(self._model) if hasattr(self, "_model") else ()
            self._lent.give_back(models, on_host=level == 1)
        if self._lent is None or not self._lent.keeps_addresses:
            self._drop_cache(and_model=level == 2)
        if self._device.is_gpu:
            torch.cuda.empty_cache()
        after = self._device.process_bytes() - (self._lent.lent_bytes if self._lent else 0)
        logger.info("asleep: %d bytes given back, %d still held", before - after, after)

    def _drop_cache(self, *, and_model: bool) -> None:
        """Let go of the cache, of graphs, and of the model, unless they are gone already."""
        if not hasattr(self, "steps"):
            return
        self.steps.graphs = None
        self._caches.release()
        if and_model:
            del self._model, self.steps
            self._speculation.draft = None
            gc.collect()

    @torch.inference_mode()
    def wake_up(self) -> None:
        """Reload the weights and the cache that sleep released. After an error, such as too little
        memory, the call may be repeated."""
        lent = self._lent
        kept = hasattr(self, "steps") if lent is None else lent.take_back_weights()
        if not kept and not (lent is not None and lent.keeps_addresses and self._read_in_place()):
            self._rebuild()
        if lent is not None and lent.keeps_addresses:
            lent.take_back_cache()
        else:
            self._take_cache()
            self.steps.graphs = self._graphs.build(self.steps)
            capture(self.steps.graphs, lambda phase, share: None)
        self._bind_tier()
        self._is_asleep = False

    def _read_in_place(self) -> bool:
        """Read weights into the existing tensors. Returns whether every rank could."""
        anew = SpeculationSetup(self._config, self._group.size)
        models = self._speculation.models(self._model)
        return self._all_say(read_in_place(models, self._builder, anew, self._config))

    def _rebuild(self) -> None:
        """Build the model again, at other addresses."""
        if self._lent is not None and self._lent.keeps_addresses:
            logger.warning("weights do not fit into the tensors of those before: all is made anew")
            self._drop_cache(and_model=True)
            self._lent.end_pools()
        self._build()
        self._load(lambda phase, share: None)
        self.steps = self._step_runner()
        if self._after_layers is not None:
            self.call_after_layers(self._after_layers)

    def check_weights(self, path: str) -> None:
        """Match a checkpoint's files with a model on PyTorch's meta device, which has shapes and no
        memory. Raises `ModelError` where its weights cannot take the place of these."""
        speculation = SpeculationSetup(self._config.with_weights(path), self._group.size)
        speculation.check_weights(self._builder.make(speculation, torch.device("meta")))

    def update_weights(self, path: str) -> None:
        """Take the weights of a checkpoint that `check_weights` let pass, with an empty KV cache; a
        runner that sleeps reads them when it wakes up. After an error it has none."""
        asleep = self._is_asleep
        self.sleep(2)
        self._config = self._config.with_weights(path)
        self._speculation = self._speculation.with_weights_of(self._config)
        if not asleep:
            self.wake_up()
        self._group.barrier()

    def close(self) -> None:
        """Leave the ranks that share the model, each of which does so now. Graphs are dropped
        first, once they have run: they use the group's collectives, and addresses of its memory."""
        if self._device.is_gpu:
            torch.cuda.synchronize()
        self.steps.graphs = None
        if self._exchange is not None:
            self._exchange.close()
        self._group.close()

    # ---- experts that move --------------------------------------------------------------------

    def balancer(self) -> ExpertLoadBalancer | None:
        """Build the balancer of the loaded model's experts; None if their placement is fixed."""
        balance = self._config.parallel.balance
        if balance is None or self._exchange is None:
            return None
        return ExpertLoadBalancer.of(self._model, self._exchange.links, balance)
