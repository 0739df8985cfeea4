"""StepPipeline: schedule → submit → collect → update, with at most `depth` steps outstanding.

With depth 1 the host schedules a step while the device still computes the previous one (deferred
output, docs/adr/0002): the scheduler counts tokens that it does not know yet. Depth 0 waits for
each step. The tokens are the same either way.

Only a step that holds guided rows (structured output) waits in between: its layers are submitted,
then the previous step's tokens are collected, which decide the masks of its rows, and then it is
sampled. A row whose mask is late is set back: its token of this step is dropped, and the row takes
part in no other step until its mask arrives. Used by EngineCore, benchmarks and tests; knows no
sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec
import numpy as np

from atom.config import Config
from atom.errors import RequestError
from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.block_manager import BlockManager
from atom.model_engine.blocks.state_checkpoints import StateCheckpoints
from atom.model_engine.executor.base import StepExecutor
from atom.model_engine.kv_disk.disk_moves import DiskStore
from atom.model_engine.outlook.outlook import Outlook
from atom.model_engine.page_moves import PageMover
from atom.model_engine.request import FinishReason, Request
from atom.model_engine.schedule.accepted_tokens import AcceptedTokens
from atom.model_engine.schedule.step_result import StepResult
from atom.model_engine.schedule.tiers.kv_tiers import KVTiers, TierSetup
from atom.model_engine.scheduler import Scheduler
from atom.model_engine.structured_output.compile_messages import CompilerSetup
from atom.model_engine.structured_output.guided_requests import GRAMMAR_COMPLETE, GuidedRequests
from atom.model_engine.structured_output.guided_rows import GuidedEnd
from atom.model_engine.wire.core_stats import StatsBody
from atom.model_engine.wire.engine_protocol import EngineReport, FinishedRow
from atom.model_engine.wire.outlook_body import OutlookBody
from atom.speculation.draft_lengths import draft_lengths
from atom.speculation.measured_cost import MeasuredCost, Timed
from atom.speculation.step_cost import Costs, DraftingLayers, step_cost
from atom.speculation.suffix.suffix_drafter import SuffixDrafter
from atom.speculative_config import SuffixOptions

_SEEDS_APART = 2**32


class StepPipeline:
    def __init__(
        self,
        scheduler: Scheduler,
        executor: StepExecutor,
        *,
        depth: int,
        guided: GuidedRequests | None = None,
        join: Callable[[], None] | None = None,
        outlook: Outlook | None = None,
    ) -> None:
        """depth: 0 or 1. guided: None for an engine without structured output. join: called where
        a step has no batch, which other ranks may have one for (`Executor.join`). outlook: is told
        of each step; None if no one asks for predictions."""
        self._scheduler = scheduler
        self._executor = executor
        self._depth = depth
        self._guided = guided
        self._join = join
        self._outlook = outlook
        self._submitted: deque[tuple[ScheduledBatch, int]] = deque()
        self._tiers = scheduler.tiers
        self._set_back: dict[int, int] = {}  # request ids, and the ticket that drops their token
        self._resumed: set[int] = set()  # of these, whose mask has come before the ticket's tokens

    # ---- requests -----------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        if self._guided is not None and request.params.thinking is not None:
            self._guided.thinking.enter(request.id, request.params.thinking)
            if self._guided.thinking.accept([(request.id, request.output_token_ids)]):
                raise RequestError(
                    "thinking_token_budget: the answer so far cannot be followed",
                    param="thinking_token_budget",
                )
        if self._guided is not None and request.params.structured_outputs is not None:
            self._guided.hold(request)
        else:
            self._scheduler.add(request)

    def knows(self, request_id: int) -> bool:
        """Return whether this request has not ended."""
        if self._scheduler.knows(request_id):
            return True
        return self._guided is not None and request_id in self._guided.open_requests

    def is_waiting(self, request_id: int) -> bool:
        """Return whether this request has not ended and holds no blocks of its own."""
        if self._guided is not None and request_id in self._guided.open_requests:
            return True
        return self._scheduler.is_waiting(request_id)

    def abort(self, request_ids: Iterable[int]) -> list[FinishedRow]:
        """Abort requests; unknown ids (already finished) are ignored."""
        numbers = list(request_ids)
        if self._guided is None:
            return self._scheduler.abort(numbers)
        return self._guided.drop(numbers) + self._scheduler.abort(numbers)

    def open_requests(self) -> tuple[int, ...]:
        """Return the ids of all requests that have not ended."""
        held = () if self._guided is None else self._guided.open_requests
        return (*held, *self._scheduler.open_requests)

    def has_work(self) -> bool:
        """Return whether there is a step to run. Requests that wait for their grammar, a mask or
        pages of their prefix are no work; `GuidedRequests.wake_fd` and the executor's `wake_fds`
        signal when one is ready."""
        if self._submitted or self._scheduler.has_work():
            return True
        if self._tiers is not None and self._tiers.has_news:
            return True
        return self._guided is not None and self._guided.has_news

    @property
    def is_blocked(self) -> bool:
        """Return whether requests are queued and none runs: others, such as requests whose prefix
        is being read, hold the blocks. A caller waits then, since turns without a step would keep
        the threads that copy pages from running."""
        return self.has_work() and not self._scheduler.num_running

    def wait_for_pages(self) -> bool:
        """Wait until moves of pages are complete; for callers without a loop and without other
        work. Returns False if none are under way."""
        return self._tiers is not None and self._tiers.wait()

    def has_requests(self) -> bool:
        """Return whether a request is open, were it only one that waits for its grammar or a
        mask."""
        held = 0 if self._guided is None else self._guided.num_held
        return bool(self._submitted) or self._scheduler.num_requests + held > 0

    def stats(self) -> StatsBody:
        """Return the scheduler's statistics, with requests that wait for their grammar as
        waiting."""
        stats = self._scheduler.stats()
        if self._guided is None:
            return stats
        waiting = stats.requests_waiting + self._guided.num_held
        ended = self._guided.ended_for_work
        return msgspec.structs.replace(
            stats, requests_waiting=waiting, guided_ended_for_work_total=ended
        )

    def outlook(self) -> OutlookBody | None:
        """Return the latencies that a request would see now; None without an outlook."""
        return None if self._outlook is None else self._outlook.told(self._scheduler)

    # ---- steps --------------------------------------------------------------------------------

    def step(self, now: float) -> StepResult | None:
        """Submit the next batch, and return the result of the oldest step that is due, or None."""
        finished = self._turn_guided()
        if self._outlook is not None:
            self._outlook.turn(now, self._scheduler)
        if self._tiers is not None:
            self._scheduler.take_in_pages(now)
        batch = self._scheduler.schedule(now)
        if self._tiers is not None:
            self._tiers.send()
        if batch is not None and self._outlook is not None:
            self._outlook.began(now, batch)
        if batch is not None and self._guided is not None and self._guided.confines(batch):
            result = self._step_guided(replace(batch, samples_later=True), self._guided)
            return _with_finished(result, finished) if finished else result
        if batch is not None:
            self._submitted.append((batch, self._executor.submit(batch)))
        elif self._join is not None:
            self._join()
        # Nothing schedulable means that the next decision needs an outstanding output.
        is_due = len(self._submitted) > self._depth or (batch is None and bool(self._submitted))
        result = self._take_in() if is_due else None
        return _with_finished(result, finished) if finished else result

    def pause(self, now: float) -> None:
        """Note that the caller has no step to run and begins to wait: the last step ends."""
        self._scheduler.pace.pause(now)
        if self._outlook is not None:
            self._outlook.pause(now, self._scheduler)

    def preempt_all(self) -> list[StepResult]:
        """Take in the steps that are outstanding, whose results are returned, and let every request
        that runs be computed again. No page is moved any more."""
        results = [self._take_in() for _ in range(len(self._submitted))]
        self._scheduler.preempt_all()
        if self._tiers is not None:
            self._tiers.settle()
        return results

    def _step_guided(self, batch: ScheduledBatch, guided: GuidedRequests) -> StepResult | None:
        ticket = self._executor.submit(batch)
        result = self._take_in() if self._submitted else None
        self._submitted.append((batch, ticket))
        chosen = guided.mask(batch)
        ended = self._end(chosen.ends, guided)
        self._scheduler.hold(chosen.apart)
        self._scheduler.set_back(chosen.late)
        self._set_back.update(dict.fromkeys(chosen.late, ticket))
        self._executor.sample(ticket, chosen.mask)
        if self._depth == 0:
            result = self._take_in()
        return _with_finished(result, ended) if ended else result

    def _take_in(self) -> StepResult:
        """Collect the oldest step's tokens."""
        batch, ticket = self._submitted.popleft()
        result = self._scheduler.update(batch, self._executor.collect(ticket))
        if self._outlook is not None:
            self._outlook.ended()
        if self._guided is None:
            return result
        if self._set_back:
            result = self._drop_set_back(result, ticket)
        return self._follow(result, self._guided)

    def _drop_set_back(self, result: StepResult, ticket: int) -> StepResult:
        """Resume rows whose token of this step was dropped, once their mask is there; the token is
        not reported."""
        dropped = {number for number, of in self._set_back.items() if of == ticket}
        for number in dropped:
            del self._set_back[number]
        self._scheduler.resume(self._resumed & dropped)
        self._resumed -= dropped
        if not dropped or result.logprobs is None:
            return result
        kept = ~np.isin(result.logprobs.request_ids, list(dropped))
        return replace(result, logprobs=result.logprobs.where(kept))

    def _follow(self, result: StepResult, guided: GuidedRequests) -> StepResult:
        """Feed the guided rows their tokens, and end the rows that must end."""
        ends = guided.accept(result.runs(), [row.request_id for row in result.finished])
        if not ends:
            return result
        finished = {row.request_id: row for row in result.finished}
        for row in self._end(ends, guided):
            finished[row.request_id] = row
        for end in ends:
            if end.error is not None:  # also of one that ended by the very token it may not have
                finished[end.request_id] = msgspec.structs.replace(
                    finished[end.request_id],
                    reason=FinishReason.ERROR.value,
                    detail=end.error,
                    param=end.param,
                )
        return replace(result, finished=list(finished.values()))

    def _end(self, ends: Iterable[GuidedEnd], guided: GuidedRequests) -> list[FinishedRow]:
        """End the guided rows that have not ended otherwise."""
        finished = []
        for end in ends:
            guided.leave([end.request_id])
            for row in self._scheduler.end([end.request_id], FinishReason.STOP, GRAMMAR_COMPLETE):
                if end.error is not None:
                    row = msgspec.structs.replace(
                        row, reason=FinishReason.ERROR.value, detail=end.error, param=end.param
                    )
                finished.append(row)
        return finished

    def _turn_guided(self) -> list[FinishedRow]:
        """Schedule the requests whose grammar or mask has arrived; return the rows that ended."""
        if self._guided is None:
            return []
        turn = self._guided.take()
        for request in turn.admitted:
            self._scheduler.add(request)
        for number in turn.resumed:
            if number in self._set_back:
                self._resumed.add(number)
            else:
                self._scheduler.resume([number])
        self._guided.thinking.leave(row.request_id for row in turn.finished)
        return turn.finished + self._end(turn.ends, self._guided)


def _with_finished(result: StepResult | None, finished: list[FinishedRow]) -> StepResult:
    if result is None:
        none = np.zeros(0, dtype=np.int64)
        return StepResult(none, none.astype(np.int32), finished)
    return replace(result, finished=[*result.finished, *finished])


def build_scheduler(
    config: Config,
    report: EngineReport,
    mover: PageMover | None = None,
    store: DiskStore | None = None,
) -> Scheduler:
    """Build the scheduler of a started engine, over the blocks that it found room for. mover: of
    pages to a tier below the device, if there is one; store: of files behind it."""
    model = config.model
    # States may leave room for fewer sequences than were asked for.
    limits = replace(config.scheduler, max_num_seqs=report.max_num_seqs)
    blocks = BlockManager(
        report.num_blocks,
        report.block_size,
        enable_prefix_caching=config.cache.enable_prefix_caching and _may_share(config, report),
        root="|".join(
            map(str, (model.path, model.facts.quantization, report.dtype, report.kv_cache_dtype))
        ),
        masks=report.cache_masks,
        checkpoints=_checkpoints(report),
        policy=config.tier.policy,
    )
    lengths, asked = None, config.speculative
    if asked is not None:
        costs = _step_costs(config, report)
        lengths = draft_lengths(asked, limits.max_num_seqs, costs)
    scheduler = Scheduler(
        limits,
        blocks,
        # A pooled prompt may fill the context: the token that ends its row is never computed.
        max_model_len=model.max_model_len + (model.pooling is not None),
        eos_token_ids=model.eos_token_ids,
        # Ranks draw apart: the same prompt on two of them is to give two samples.
        seed=config.seed + _SEEDS_APART * config.parallel.data_parallel_rank,
        draft_lengths=lengths,
        tiers=None if mover is None else _tiers(config, report, blocks, mover, store),
        vision=model.facts.vision,
    )
    if asked is not None and asked.method == "suffix":
        draft_by_suffix(scheduler, asked.suffix)
    return scheduler


def draft_by_suffix(scheduler: Scheduler, options: SuffixOptions) -> None:
    """Let a scheduler foretell the drafts of its rows, from texts that sequences share as they
    share cached prefixes: with one cache salt and adapter."""
    assert isinstance(scheduler.tokens, AcceptedTokens), "rows may carry drafts"
    blocks = scheduler.blocks
    scheduler.tokens.draft_with(
        SuffixDrafter(options),
        lambda sequence: blocks.root_of(sequence.cache_salt, sequence.lora),
    )


def _tiers(
    config: Config,
    report: EngineReport,
    blocks: BlockManager,
    mover: PageMover,
    store: DiskStore | None,
) -> KVTiers | None:
    tier = report.host_tier
    if tier is None:
        return None
    setup = TierSetup(
        num_pages=tier.num_pages,
        page_bytes=tier.page_bytes,
        queue_pages=tier.queue_pages,
        num_states=tier.num_states,
        state_bytes=tier.state_bytes,
        queue_states=tier.queue_states,
        min_tokens=config.tier.min_tokens,
        policy=config.tier.policy,
        write=config.tier.write,
        ranks=config.parallel.tensor_parallel_size,
    )
    return KVTiers(blocks, setup, mover, store)


def _may_share(config: Config, report: EngineReport) -> bool:
    """Return whether prompts can share a prefix: if layers keep states, by checkpoints."""
    return not config.model.facts.keeps_states or report.num_checkpoints > 0


def _checkpoints(report: EngineReport) -> StateCheckpoints | None:
    if not report.num_checkpoints:
        return None
    return StateCheckpoints(report.num_checkpoints, report.checkpoint_tokens // report.block_size)


def _step_costs(config: Config, report: EngineReport) -> Costs:
    """Build the cost model of steps: from times measured at start, or else from the model's
    facts."""
    layers = None
    if config.speculative is not None and config.speculative.by_layers:
        layers = DraftingLayers(None if config.draft is None else config.draft.facts)
    cost = step_cost(config.model.facts, on_cpu=report.on_cpu, drafting=layers)
    if not report.timed_steps:
        return cost
    return MeasuredCost([Timed(*msgspec.structs.astuple(step)) for step in report.timed_steps])


def build_guided(config: Config) -> GuidedRequests:
    """Build structured output for the model of this configuration."""
    model = config.model
    return GuidedRequests(
        CompilerSetup(
            tokenizer_folder=str(model.tokenizer_path),
            vocab_size=model.vocab_size,
            end_token_ids=list(model.eos_token_ids),
        )
    )
