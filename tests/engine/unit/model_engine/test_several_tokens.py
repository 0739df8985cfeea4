"""Several tokens a row and step give the answers that one a step gives, token for token.

Scheduler, pipeline, wire and output processor around a model that verifies drafts (PagedModel):
thousands of seeded requests over every control that cuts, reports or delays tokens, through chunks,
shared prefixes, preemption, windows and a host that is a step behind. The oracle is the same engine
without drafts, with blocks for everyone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from atom.model_engine.request import Request, RequestOutput, TokenLogprobs
from atom.model_engine.step_pipeline import StepPipeline
from atom.model_engine.wire.engine_protocol import StreamBody, decode, encode
from atom.sizing import CacheGroup
from atom.sizing.mask_rule import sliding_window
from atom.tokenizer import Tokenizer
from tests.support.engine_core.builders_engine import EOS, make_request, make_scheduler
from tests.support.engine_core.paged_model import PagedModel
from tests.support.engine_core.scheduler_integrity import check_integrity
from tests.support.engine_core.step_outputs import StepReader
from tests.support.models.byte_tokenizer import write_byte_tokenizer

MAX_MODEL_LEN = 64
STOP_TOKEN = 40
REQUESTS = 250  # of each setting
SEEDS = 4  # of requests, each for several settings
SAID = "stop the and hello world 字 € 🙂 top so\n"
STOPS = ["stop", "op", "the a", "字", "🙂 t", "\n", "zzz"]

SETTINGS: list[dict[str, Any]] = [
    {"drafts": 1},
    {"drafts": 3},
    {"drafts": 3, "depth": 1},
    {"drafts": 7, "depth": 1, "block_size": 16},
    {"drafts": 2, "depth": 1, "block_size": 1},
    {"drafts": 5, "depth": 1, "policy": "prefill_first"},
    {"drafts": 3, "policy": "prefill_first", "budget": 7},
    {"drafts": 4, "depth": 1, "spare_blocks": 0},
    {"drafts": 4, "spare_blocks": 1, "block_size": 1},
    {"drafts": 3, "depth": 1, "budget": 9, "threshold": 5},
    {"drafts": 3, "depth": 1, "windows": (6,)},
    {"drafts": 3, "windows": (None, 5), "spare_blocks": 2},
    {"drafts": 6, "depth": 1, "windows": (4, None, 17), "spare_blocks": 0},
    {"drafts": 2, "depth": 1, "windows": (1, 9), "block_size": 1},
    {"drafts": 3, "depth": 1, "prefix_caching": False, "spare_blocks": 0},
    {"drafts": 3, "depth": 1, "most_seqs": 1},
]


@dataclass(frozen=True)
class Setting:
    drafts: int = 0
    depth: int = 0
    block_size: int = 4
    policy: str = "mixed"
    budget: int = 24
    threshold: int = 0
    spare_blocks: int = 6
    most_seqs: int = 6
    prefix_caching: bool = True
    windows: tuple[int | None, ...] = (None,)


PLAIN = Setting(spare_blocks=400)  # without drafts, and with blocks for everyone


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    last: RequestOutput | None = None

    @property
    def seen(self) -> tuple[Any, ...]:
        """All that a caller can tell two answers apart by."""
        last = self.last
        assert last is not None, "an answer never ended"
        ends = (last.finish_reason, last.finish_detail, last.stop_reason)
        return self.tokens, self.text, self.logprobs, last.num_output_tokens, *ends


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(folder)
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def expected(tokenizer: Tokenizer) -> list[list[Answer]]:
    """The answers of one token a step to the requests of each seed."""
    return [played(Engine(tokenizer, some_requests(seed), PLAIN)) for seed in range(SEEDS)]


def some_requests(seed: int) -> list[Request]:
    draw = random.Random(seed)
    return [_some_request(number, draw) for number in range(REQUESTS)]


def _some_request(number: int, draw: random.Random) -> Request:
    # Prompts begin alike, so that there are prefixes to share.
    prompt = [10 + draw.randrange(2)] * draw.randrange(20)
    prompt += [50 + draw.randrange(40) for _ in range(draw.randrange(1, 9))]
    max_tokens = draw.randrange(1, 30)
    return make_request(
        number, prompt, max_tokens=max_tokens, priority=draw.randrange(-2, 3),
        ignore_eos=draw.random() < 0.4, cache_salt=draw.choice(["", "", "a"]),
        stop_token_ids=(STOP_TOKEN,) * draw.randrange(2),
        stop_strings=tuple(draw.sample(STOPS, draw.randrange(3))),
        min_tokens=draw.choice([0, 0, draw.randrange(max_tokens + 1)]),
        logprobs=draw.choice([None, None, 0]),
    )  # fmt: skip


class Engine:
    def __init__(self, tokenizer: Tokenizer, requests: list[Request], setting: Setting) -> None:
        self.requests, self.setting = requests, setting
        self.words = tokenizer.encode(SAID, add_special_tokens=False)
        size, windows = setting.block_size, setting.windows
        num_blocks = setting.spare_blocks + sum(
            CacheGroup((), sliding_window(window)).blocks(MAX_MODEL_LEN, size, setting.drafts)
            for window in windows
        )
        self.scheduler = make_scheduler(
            num_blocks=num_blocks, block_size=size, max_num_seqs=setting.most_seqs,
            max_num_batched_tokens=setting.budget, max_model_len=MAX_MODEL_LEN,
            policy=setting.policy, threshold=setting.threshold, windows=windows,
            prefix_caching=setting.prefix_caching, num_speculative_tokens=setting.drafts,
        )  # fmt: skip
        self.model = PagedModel(
            size, num_blocks, scheduled_rows=self.scheduler.rows, num_drafts=setting.drafts,
            draw=self._drawn_token, windows=windows, max_model_len=MAX_MODEL_LEN,
        )  # fmt: skip
        self.pipeline = StepPipeline(self.scheduler, self.model, depth=setting.depth)
        self.processor = StepReader(tokenizer)
        self.answers = [Answer() for _ in requests]
        self.late: list[int] = []  # requests that the engine is yet to be told of
        self.runs = 0  # times that a row got several tokens
        self.cut_runs = 0  # steps that gave more than was taken

    def _drawn_token(self, request: int, position: int) -> int:
        """Ends now and then, but never before `min_tokens`, which sampling sees to."""
        asked, draw = self.requests[request], random.Random(request * 1000 + position)
        given = position - len(asked.prompt_token_ids)
        if given >= asked.params.min_tokens and draw.random() < 0.08:
            return draw.choice([EOS, STOP_TOKEN])
        return self.words[(request + position) % len(self.words)]

    def play(self) -> None:
        """All requests, a few more before each step."""
        draw, waiting = random.Random(0), list(self.requests)
        for step in range(100_000):
            for request in waiting[: draw.randrange(3)]:
                waiting.remove(request)
                self.processor.add(request, str(request.id))
                self.pipeline.add(request)
            if not waiting and not self.pipeline.has_work():
                return
            self._step(float(step))
        raise AssertionError("no progress")

    def _step(self, now: float) -> None:
        late, self.late = self.late, []
        result = self.pipeline.step(now)
        if result is not None:
            runs = [len(run) for _, run in result.runs()]
            self.runs += sum(length > 1 for length in runs)
            given = self.model.num_given.pop(0)
            self.cut_runs += sum(runs) < given
            self._show(result.message(None), now)
        if finished := self.pipeline.abort(late):
            self._show(StreamBody(b"", b"", finished), now)
        check_integrity(self.scheduler)

    def _show(self, body: StreamBody, now: float) -> None:
        sent = decode(encode(body))
        assert isinstance(sent, StreamBody)
        step = self.processor.process(sent, now)
        self.late += step.abort_ids
        for number, output in step.outputs:
            answer = self.answers[number]
            assert answer.last is None, "an output behind the last one"
            answer.tokens += output.output_tokens
            answer.text += output.text
            answer.logprobs += output.logprobs or []
            answer.last = output if output.finished else None


def played(engine: Engine) -> list[Answer]:
    """The answers to all requests, which leave nothing behind."""
    engine.play()
    assert engine.scheduler.blocks.pool.num_referenced == 0
    assert len(engine.processor) == 0
    return engine.answers


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("number", "settings"), list(enumerate(SETTINGS)), ids=lambda given: str(given)
)
def test_answers_are_those_of_one_token_a_step(
    tokenizer: Tokenizer, expected: list[list[Answer]], number: int, settings: dict[str, Any]
) -> None:
    requests = some_requests(number % SEEDS)
    engine = Engine(tokenizer, requests, Setting(**settings))
    pairs = zip(requests, expected[number % SEEDS], played(engine), strict=True)
    for request, wanted, got in pairs:
        assert got.seen == wanted.seen, f"request {request.id}: {request.params}"
    assert engine.runs > REQUESTS, "hardly a row got several tokens"


def test_the_settings_preempt_share_prefixes_and_cut_runs(tokenizer: Tokenizer) -> None:
    """What the test above is about does happen in it."""
    requests = some_requests(0)
    short_of_blocks = Engine(tokenizer, requests, Setting(drafts=4, spare_blocks=0))
    short_of_blocks.play()
    stats = short_of_blocks.scheduler.stats()
    assert stats.preemptions_total > 10
    assert stats.cached_tokens_total > 100
    details = {answer.last.finish_detail for answer in short_of_blocks.answers if answer.last}
    assert details == {"eos", f"stop_{STOP_TOKEN}", "stop_sequence", "max_tokens"}
    assert short_of_blocks.cut_runs > 20
