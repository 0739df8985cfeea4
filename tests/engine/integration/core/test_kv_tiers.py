"""An engine whose blocks go to the host's memory and return answers as one without tiers does.

Tiny models of every kind of cache, a device cache that is too small for the conversations that take
turns, and all that changes a block's identity or place: adapters, salts, drafts, chunks, deferred
steps, preemption, windows, ranks, other weights, resets and sleep. Pairs of them are drawn. Tokens
are compared with those of an engine that keeps everything on the device; how much was computed is
counted in tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atom.errors import ConfigError
from atom.model_engine.request import LoRARequest, Request
from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig
from tests.engine.integration.models.test_model_parity import CHECKPOINTS
from tests.engine.lora.test_lora_parity import lora_of
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.scheduler_integrity import check_integrity
from tests.support.models.draft_checkpoints import add_mtp_layer, make_draft_model, make_eagle3
from tests.support.models.lora_adapter import make_adapter
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.ranks.rank_group import RankGroup

MAX_MODEL_LEN = 192
BLOCK = 16
# Of each kind of cache a model: where its keys and values, entries or states are.
KINDS: dict[str, dict[str, Any]] = {
    "dense": CHECKPOINTS["qwen3"],
    "window-alone": CHECKPOINTS["mistral-window"],
    "window-beside-dense": CHECKPOINTS["qwen2-window"],
    "windows-odd-heads": CHECKPOINTS["mimo-v2-odd"],
    "sinks": CHECKPOINTS["gpt-oss"],
    "chunks": CHECKPOINTS["llama4"],
    "shared-keys": CHECKPOINTS["gemma3"],
    "latent": CHECKPOINTS["deepseek2"],
    "latent-indexer": CHECKPOINTS["deepseek32"],
    "shared-indexers": CHECKPOINTS["glm5-shared-indexers"],
    "heads-indexer": CHECKPOINTS["minimax_m3-wide-index"],
    "entries": CHECKPOINTS["deepseek4"],
    "states": CHECKPOINTS["qwen3-next"],
}


@dataclass(frozen=True)
class Way:
    """How an engine runs. tight: blocks on the device beyond one sequence's."""

    depth: int = 0
    budget: int = 48
    fp8: bool = False
    drafts: int = 0
    method: str = "ngram"
    adapters: bool = False
    tight: int = 6
    write: str = "back"
    policy: str = "lru"
    gib: float = 0.02

    def options(self, adapters: list[Path]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "max_model_len": MAX_MODEL_LEN, "max_num_seqs": 6, "block_size": BLOCK,
            "max_num_batched_tokens": self.budget, "depth": self.depth, "threads": 1,
        }  # fmt: skip
        if self.fp8:
            found["kv_cache_dtype"] = "fp8"
        if self.drafts:
            found["speculative"] = SpeculativeConfig(
                method=self.method, num_tokens=self.drafts, fewest_matched=1, adaptive=False
            )
        if self.adapters:
            found["lora"] = lora_of(adapters)
        return found

    @property
    def tier(self) -> dict[str, Any]:
        return {
            "kv_offloading_size": self.gib, "kv_offload_min_tokens": 0,
            "kv_offload_policy": self.policy, "kv_offload_write": self.write,
        }  # fmt: skip


@dataclass(frozen=True)
class Turn:
    prompt: list[int]
    adapter: int
    salt: str


def conversations(seed: int, count: int, *, adapters: int) -> list[list[Turn]]:
    """Rounds of turns: each of some conversations goes on from what was said in it, as far as a
    prompt may be long; turns of a round are asked together."""
    draw = np.random.default_rng(seed)
    texts = [draw.integers(3, 90, int(draw.integers(20, 60))).tolist() for _ in range(count)]
    shared = draw.integers(3, 90, 36).tolist()
    for number in range(0, count, 2):
        texts[number] = shared + texts[number]
    apart = [(int(draw.integers(0, adapters + 1)), str(draw.choice(["", "", "a"]))) for _ in texts]
    rounds = []
    for _ in range(4):
        turns = []
        for number in draw.permutation(count).tolist():
            if len(texts[number]) < MAX_MODEL_LEN - 30:
                turns.append(Turn(list(texts[number]), *apart[number]))
                texts[number] = texts[number] + draw.integers(3, 90, 18).tolist()
        rounds += [turns[:3], turns[3:]]
    return rounds


def ask(driver: CoreDriver, turns: list[Turn]) -> list[list[int]]:
    """Their answers in order, checked after each step."""
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    tokens: dict[int, list[int]] = {}
    for turn in turns:
        number = next(driver._ids)
        lora = LoRARequest(f"adapter-{turn.adapter}", turn.adapter) if turn.adapter else None
        driver.pipeline.add(
            Request(
                id=number, prompt_token_ids=turn.prompt, params=params, lora=lora,
                max_total_tokens=len(turn.prompt) + 8, arrive_time=float(number),
                cache_salt=turn.salt,
            )
        )  # fmt: skip
        tokens[number] = []
    while driver.has_work():
        result = driver.pipeline.step(0.0)  # nothing is timed, so a prefix is always read
        for number, run in () if result is None else result.runs():
            tokens[number] += run
        check_integrity(driver.scheduler)
    return list(tokens.values())


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def made(kind: str, seed: int = 0) -> Path:
        folder = tmp_path_factory.mktemp(f"{kind}-{seed}")
        return make_tiny_checkpoint(folder, **{**KINDS[kind], "seed": seed})

    return made


@pytest.fixture(scope="session")
def adapters(folders: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [
        make_adapter(tmp_path_factory.mktemp("adapter"), folders("dense"), rank=4, seed=seed)
        for seed in (1, 2)
    ]


def least_blocks(driver: CoreDriver) -> int:
    groups = driver.scheduler.blocks.groups
    lookahead = driver.config.scheduler.num_speculative_tokens
    return sum(group.blocks(MAX_MODEL_LEN, BLOCK, lookahead) for group in groups)


WAYS: dict[str, Way] = {
    "plain": Way(),
    "deferred": Way(depth=1, budget=33),
    "through": Way(write="through", policy="protected", gib=0.004),
    "scarce": Way(tight=1, depth=1),
}
OF_DENSE: dict[str, Way] = {
    **WAYS,
    "fp8": Way(fp8=True),
    "drafts": Way(drafts=3, depth=1),
    "earlier-answers": Way(drafts=3, method="suffix", depth=1),
    "adapters": Way(adapters=True, budget=40),
    "adapters-drafts": Way(adapters=True, drafts=2, write="through"),
    "fp8-protected": Way(fp8=True, policy="protected", depth=1, gib=0.001),
}
# Kinds and ways of `make test`; the others are in test_kv_disk, whose pages come from a tier too.
_IN_TIERS = (
    "chunks-deferred", "dense-adapters-drafts", "dense-fp8-protected", "latent-indexer-scarce",
    "latent-through", "window-alone-deferred", "window-beside-dense-plain",
)  # fmt: skip


def cases(*daily: str) -> list[Any]:
    """Every kind in every way: those that are named, every second other one in `make test-all`, and
    the rest in `make test-long`."""
    found = {f"{kind}-{way}": (kind, way) for kind in KINDS for way in WAYS}
    found |= {f"dense-{way}": ("dense", way) for way in OF_DENSE}
    assert set(daily) <= set(found)
    others = [name for name in found if name not in daily]
    marks = {name: (pytest.mark.whole, pytest.mark.slow)[at % 2] for at, name in enumerate(others)}
    return [pytest.param(*found[name], id=name, marks=marks.get(name, ())) for name in found]


@pytest.mark.parametrize(("kind", "name"), cases(*_IN_TIERS))
def test_answers_are_those_without_tiers(
    kind: str, name: str, folders: Any, adapters: list[Path]
) -> None:
    way, folder = OF_DENSE[name], folders(kind)
    rounds = conversations(len(kind) + len(name), 6, adapters=2 if way.adapters else 0)
    options = way.options(adapters)
    plain = CoreDriver(str(folder), num_kv_blocks=900, **options)
    blocks = least_blocks(plain) + way.tight
    tiered = CoreDriver(str(folder), num_kv_blocks=blocks, **options, **way.tier)
    small = CoreDriver(str(folder), num_kv_blocks=blocks, **options)
    for turns in rounds:
        expected = ask(plain, turns)
        assert ask(tiered, turns) == expected
        ask(small, turns)
    stats = tiered.scheduler.stats()
    assert stats.offload_load_bytes_total > 0
    assert stats.offload_checksum_errors_total == 0
    assert stats.offload_dropped_queue_total == 0
    assert stats.cached_tokens_total > small.scheduler.stats().cached_tokens_total


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["mtp", "eagle3", "draft_model"])
def test_layers_that_draft_have_pages_too(method: str, folders: Any, tmp_path: Path) -> None:
    kind = "deepseek3" if method == "mtp" else "qwen3"
    layers = {"layers": 7} if method == "eagle3" else {}
    folder = make_tiny_checkpoint(tmp_path / "model", **{**CHECKPOINTS[kind], **layers})
    draft = None
    if method == "mtp":
        add_mtp_layer(folder)
    else:
        draft = str(tmp_path / "draft")
        if method == "eagle3":
            make_eagle3(Path(draft), folder, draft_vocabulary=200)
        else:
            make_draft_model(Path(draft), folder)
    options = Way(depth=1).options([])
    plain = CoreDriver(str(folder), num_kv_blocks=900, **options)
    options["speculative"] = SpeculativeConfig(
        method=method, num_tokens=2, draft_model=draft, adaptive=False
    )
    drafting = CoreDriver(
        str(folder), num_kv_blocks=least_blocks(plain) + 6, **options, **Way().tier
    )
    for turns in conversations(5, 6, adapters=0):
        assert ask(drafting, turns) == ask(plain, turns)
    stats = drafting.scheduler.stats()
    assert stats.offload_load_bytes_total > 0
    assert stats.draft_tokens_total > 0


@pytest.mark.whole  # that a tier spares computing is asserted of every kind above
@pytest.mark.parametrize("agents", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_device_that_is_too_small_computes_a_tenth_with_a_tier(agents: int, folders: Any) -> None:
    """Agents that take forty turns each, with prompts that grow: their conversations together are
    larger than the device's cache."""
    draw = random.Random(0)
    options = Way().options([])
    options |= {"max_model_len": 512, "max_num_batched_tokens": 256}
    begun = [[draw.randrange(3, 90) for _ in range(110)] for _ in range(agents)]
    computed = {}
    tier = {"kv_offloading_size": 0.1, "kv_offload_min_tokens": 16}
    for name, extra in {"tier": tier, "none": {}}.items():
        driver = CoreDriver(str(folders("dense")), num_kv_blocks=36, **options, **extra)
        says = random.Random(1)
        texts = [list(text) for text in begun]
        answers = []
        for _ in range(40):
            for text in texts:
                answers += ask(driver, [Turn(list(text), 0, "")])
                text += answers[-1] + [says.randrange(3, 90), says.randrange(3, 90)]
        stats = driver.scheduler.stats()
        computed[name] = answers, stats.prompt_tokens_total - stats.cached_tokens_total
    (with_tier, few), (without, many) = computed["tier"], computed["none"]
    assert with_tier == without
    assert few <= 0.1 * many


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankGroup]:
    group = RankGroup(2)
    yield group
    group.close()


@pytest.mark.rotated
@pytest.mark.parametrize("kind", ["dense", "window-beside-dense", "latent", "states"])
def test_two_ranks_share_the_rows_of_a_tier(kind: str, folders: Any, ranks: RankGroup) -> None:
    folder, options = folders(kind), Way(depth=1).options([])
    plain = CoreDriver(str(folder), num_kv_blocks=900, **options)
    rounds = conversations(7, 6, adapters=0)
    expected = [ask(plain, turns) for turns in rounds]
    tiered = ranks.driver(
        str(folder), num_kv_blocks=least_blocks(plain) + 6, **options, **Way().tier
    )
    try:
        assert [ask(tiered, turns) for turns in rounds] == expected
        stats = tiered.scheduler.stats()
        assert stats.offload_load_bytes_total > 0
        assert stats.offload_checksum_errors_total == 0
    finally:
        tiered.close()


def damaged(driver: CoreDriver, draw: random.Random, share: float) -> int:
    """Flip a bit in some rows of the host's memory; how many."""
    tier = driver.executor.runner.tier
    rows, count = tier._memory.pages, 0
    for row in range(len(rows)):
        if rows[row].any() and draw.random() < share:
            rows[row, draw.randrange(rows.shape[1])] ^= 1 << draw.randrange(8)
            count += 1
    return count


@pytest.mark.rotated
@pytest.mark.parametrize("kind", ["dense", "window-beside-dense", "latent-indexer", "entries"])
def test_damaged_pages_are_counted_and_computed_again(kind: str, folders: Any) -> None:
    folder, options, draw = folders(kind), Way().options([]), random.Random(3)
    plain = CoreDriver(str(folder), num_kv_blocks=900, **options)
    tiered = CoreDriver(str(folder), num_kv_blocks=least_blocks(plain) + 6, **options, **Way().tier)
    flipped = 0
    for turns in conversations(11, 8, adapters=0):
        expected = ask(plain, turns)
        flipped += damaged(tiered, draw, 0.3)
        assert ask(tiered, turns) == expected
    assert flipped > 30
    assert 0 < tiered.scheduler.stats().offload_checksum_errors_total <= flipped


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"enable_prefix_caching": False}, "prefix caching is off"),
        ({"kv_offloading_size": 1e-9}, "it holds no page; give at least"),
        ({"kv_offloading_size": 1e7}, "the host has"),
    ],
)
def test_a_tier_that_cannot_work_is_refused(
    options: dict[str, Any], told: str, folders: Any
) -> None:
    with pytest.raises(ConfigError, match=told):
        CoreDriver(str(folders("dense")), **{**Way().tier, **options})
