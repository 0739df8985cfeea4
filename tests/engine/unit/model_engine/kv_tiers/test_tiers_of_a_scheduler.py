"""Blocks that leave the device and return hold what the request computed, whatever happens between.

A scheduler over a model that notices every wrong block (PagedModel), with a device cache that is
too small: seeded requests that begin alike, by salts, windows, drafts, deferred steps, a queue that
drops pages, moves that take several steps, spoiled rows, aborts, preemption and resets. The tokens
are those of a scheduler without a tier, and every search finds what an exhaustive one does.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from atom.model_engine.request import Request
from atom.model_engine.schedule.tiers.kv_tiers import TierSetup
from atom.model_engine.step_pipeline import StepPipeline
from atom.sizing import CacheGroup
from atom.sizing.mask_rule import sliding_window
from tests.support.engine_core.builders_engine import make_request, make_scheduler
from tests.support.engine_core.longest_tier_prefix import WatchedTiers
from tests.support.engine_core.paged_files import PagedFiles
from tests.support.engine_core.paged_model import PagedModel, drawn_token
from tests.support.engine_core.paged_mover import PagedMover
from tests.support.engine_core.scheduler_integrity import check_integrity

MAX_MODEL_LEN = 64
REQUESTS = 60  # of a seed, about a thousand pages that are evicted and read


@dataclass(frozen=True)
class Setting:
    depth: int = 0
    block_size: int = 4
    windows: tuple[int | None, ...] = (None,)
    drafts: int = 0
    policy: str = "mixed"
    budget: int = 24
    spare_blocks: int = 4
    most_seqs: int = 4
    pages: int = 200
    queue: int = 1000
    evicts: Literal["lru", "protected"] = "lru"
    write: Literal["back", "through"] = "back"
    min_tokens: int = 0
    steps: int = 0
    spoiled_share: float = 0.0
    resets: bool = False
    aborts: bool = False
    clients: bool = False
    files: dict[str, Any] | None = None


SETTINGS: dict[str, Setting] = {
    "at-once": Setting(),
    "deferred": Setting(depth=1, steps=3),
    "through": Setting(write="through", steps=2),
    "protected": Setting(evicts="protected", pages=24, spare_blocks=10),
    "few-pages": Setting(pages=9, steps=2),
    "drops": Setting(queue=2, steps=4, depth=1),
    "windows": Setting(windows=(None, 5), steps=2),
    "more-windows": Setting(windows=(4, None, 17), depth=1, spare_blocks=8),
    "windows-alone": Setting(windows=(9, 6), steps=1, block_size=1),
    "drafts": Setting(drafts=3, depth=1, steps=2),
    "drafts-windows": Setting(drafts=4, windows=(None, 6), depth=1, steps=1),
    "long-blocks": Setting(block_size=16, steps=1),
    "single-tokens": Setting(block_size=1, steps=3, budget=9),
    "prefill-first": Setting(policy="prefill_first", steps=2, depth=1),
    "least-tokens": Setting(min_tokens=12, steps=2),
    "spoiled": Setting(spoiled_share=0.2, steps=2),
    "spoiled-windows": Setting(spoiled_share=0.3, windows=(None, 7), depth=1, steps=3),
    "resets": Setting(resets=True, steps=3, depth=1),
    "aborts": Setting(aborts=True, steps=3, depth=1),
    "all": Setting(
        windows=(None, 6), depth=1, steps=3, queue=6, pages=40, spoiled_share=0.1, resets=True,
        aborts=True, clients=True, evicts="protected",
    ),
    "all-drafts": Setting(
        drafts=3, steps=4, queue=9, pages=30, spoiled_share=0.1, resets=True, aborts=True,
        clients=True, write="through",
    ),
    "files": Setting(pages=12, files={}),
    "files-deferred": Setting(pages=14, depth=1, steps=2, files={"steps": 4}),
    "files-windows": Setting(pages=16, windows=(None, 5), steps=2, files={"steps": 3}),
    "files-drafts": Setting(pages=12, drafts=3, depth=1, steps=1, files={"steps": 2}),
    "files-protected": Setting(pages=12, evicts="protected", files={"steps": 2}),
    "files-lost": Setting(pages=12, files={"steps": 3, "lost_share": 0.2, "dropped_share": 0.1}),
    "files-late": Setting(pages=16, steps=2, depth=1, files={"steps": 3, "late_share": 0.2}),
    "files-off": Setting(pages=14, steps=2, files={"steps": 2, "off_share": 0.02}),
    "files-spoiled": Setting(pages=14, spoiled_share=0.2, steps=2, files={"steps": 2}),
    "files-all": Setting(
        windows=(None, 6), depth=1, steps=3, pages=24, spoiled_share=0.05, resets=True,
        aborts=True, clients=True, evicts="protected",
        files={
            "steps": 4, "lost_share": 0.1, "dropped_share": 0.1, "late_share": 0.1,
            "off_share": 0.01,
        },
    ),
}  # fmt: skip


def some_requests(seed: int, setting: Setting) -> list[Request]:
    """Prompts that begin alike, and some that go on from an earlier prompt and its answer."""
    draw = random.Random(seed)
    heads = [[10 + draw.randrange(30) for _ in range(48)] for _ in range(5)]
    requests: list[Request] = []
    for number in range(REQUESTS):
        prompt, salt = draw.choice(heads)[: draw.randrange(8, 49)], draw.choice(["", "", "a"])
        if requests and draw.random() < 0.4:
            before = draw.choice(requests[-12:])
            total, salt = before.max_total_tokens, before.cache_salt
            answer = range(len(before.prompt_token_ids), total)
            told = [drawn_token(before.id, position) for position in answer]
            if total < 52:
                prompt = [*before.prompt_token_ids, *told]
        prompt = prompt + [50 + draw.randrange(40) for _ in range(draw.randrange(0, 5))]
        requests.append(
            make_request(
                number, prompt, max_tokens=draw.randrange(1, 8), ignore_eos=True,
                cache_salt=salt, priority=draw.randrange(-2, 3),
                client_id=draw.choice("xyz") if setting.clients else "",
            )
        )  # fmt: skip
    return requests


class Engine:
    def __init__(self, setting: Setting, seed: int, *, tier: bool) -> None:
        size, windows = setting.block_size, setting.windows
        num_blocks = setting.spare_blocks + sum(
            CacheGroup((), sliding_window(window)).blocks(MAX_MODEL_LEN, size, setting.drafts)
            for window in windows
        )
        self.mover = PagedMover(setting.steps, setting.spoiled_share, seed=seed)
        self.files = None
        if setting.files is not None:
            self.files = PagedFiles(self.mover, seed=seed, **setting.files)
        setup = TierSetup(
            setting.pages, 1, setting.queue, min_tokens=setting.min_tokens,
            policy=setting.evicts, write=setting.write,
        )  # fmt: skip
        self.scheduler = make_scheduler(
            num_blocks=num_blocks, block_size=size, max_num_seqs=setting.most_seqs,
            max_num_batched_tokens=setting.budget, max_model_len=MAX_MODEL_LEN,
            policy=setting.policy, windows=windows, num_speculative_tokens=setting.drafts,
            tier=(setup, self.mover, self.files) if tier else None,
        )  # fmt: skip
        self.model = PagedModel(
            size, num_blocks, scheduled_rows=self.scheduler.rows, num_drafts=setting.drafts,
            windows=windows, max_model_len=MAX_MODEL_LEN,
        )  # fmt: skip
        self.mover.model = self.model
        self.watched = None if self.scheduler.tiers is None else WatchedTiers(self.scheduler.tiers)
        executor: Any = self.model
        self.pipeline = StepPipeline(self.scheduler, executor, depth=setting.depth)
        self.tokens: dict[int, list[int]] = {}
        self.cached: dict[int, int] = {}

    def play(self, requests: list[Request], setting: Setting, seed: int) -> None:
        """Let requests arrive a few at a time, until all have ended."""
        draw, waiting = random.Random(seed), list(requests)
        for step in range(20_000):
            while waiting and self.scheduler.num_requests < setting.most_seqs + 2:
                self.pipeline.add(waiting.pop(0))
            if setting.resets and draw.random() < 0.01:
                self.scheduler.blocks.reset_prefix_cache(keep_host=draw.random() < 0.5)
            if setting.resets and draw.random() < 0.005:
                for result in self.pipeline.preempt_all():
                    self._note(result)
            if setting.aborts and draw.random() < 0.02 and self.scheduler.open_requests:
                number = draw.choice(self.scheduler.open_requests)
                self.pipeline.abort([number])
                self.tokens.pop(number, None)
            if not self.pipeline.has_work():
                if not self.pipeline.has_requests():
                    return
                # As a descriptor would wake a core that sleeps.
                if self.files is None or not self.files.has_moved:
                    self.mover.tick()
                continue
            self._note(self.pipeline.step(float(step)))
            check_integrity(self.scheduler)
        raise AssertionError("no progress")

    def _note(self, result: Any) -> None:
        for number, run in () if result is None else result.runs():
            self.tokens.setdefault(number, []).extend(run)
        for row in () if result is None else result.finished:
            self.cached[row.request_id] = row.num_cached_tokens


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.whole)])
def test_pages_that_return_hold_what_was_computed(name: str, seed: int) -> None:
    check_pages(name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_hundred_thousand_pages_return(name: str) -> None:
    """About five thousand of each setting, fewer where rows are few."""
    returned = sum(check_pages(name, 100 + seed) for seed in range(28))
    assert returned > 300


def check_pages(name: str, seed: int) -> int:
    """Play a seed with a tier and without; how many pages went to the host and back."""
    setting = SETTINGS[name]
    requests = some_requests(seed, setting)
    engine = Engine(setting, seed, tier=True)
    engine.play(requests, setting, seed)
    plain = Engine(Setting(spare_blocks=400, block_size=setting.block_size), seed, tier=False)
    plain.play(requests, Setting(), seed)
    for number, tokens in engine.tokens.items():
        assert tokens == plain.tokens[number][: len(tokens)]
        assert number not in engine.cached or len(tokens) == len(plain.tokens[number])
    assert engine.mover.saved
    # Few pages, windows and aborts leave some seeds without a prefix that a later request has.
    assert engine.watched is not None
    if not engine.mover.loaded:  # a reset may cancel the only read
        assert setting.resets or not engine.watched.gainful
    stats = engine.scheduler.stats()
    # Each request counts a page that several read at once.
    readers = setting.most_seqs + 2
    assert stats.offload_checksum_errors_total <= readers * engine.mover.spoiled_total
    assert (stats.offload_checksum_errors_total > 0) >= name.startswith("spoiled")
    assert (stats.offload_dropped_queue_total > 0) == (setting.queue < 10)
    assert engine.scheduler.blocks.pool.num_referenced == 0
    if engine.files is not None:
        assert engine.files.written_total
        assert engine.files.read_total or setting.resets  # as for the host's pages
        assert stats.offload_disk_hits_total or setting.resets
    return engine.mover.loaded
