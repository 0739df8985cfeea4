"""Every client gets its text, cut where it should be, whatever else happens to the engine.

Scheduler, pipeline and output processor together: answers of many tokens per character and many
characters per token, stop strings that the engine learns of late, too few blocks, tokens a step
behind, clients that leave. What each should see is worked out from its tokens alone.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.model_engine.request import RequestOutput
from atom.model_engine.step_pipeline import StepPipeline
from atom.tokenizer import Tokenizer
from tests.support.engine_core.builders_engine import EOS, make_request, make_scheduler
from tests.support.engine_core.front_half import stream_body
from tests.support.engine_core.paged_model import PagedModel
from tests.support.engine_core.step_outputs import StepReader
from tests.support.models.byte_tokenizer import write_byte_tokenizer
from tests.support.random_search import examples

STOP_TOKEN = 40
PIECES = ["stop", " stop", "the ", "and", "hello world", "字", "€", "🙂", "s", "to", "p", "\n"]
TEXTS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=12).map("".join)
STOPS = st.lists(st.sampled_from(["stop", "op", "hello w", "字", "🙂s", "\n\n", "zzz"]), max_size=2)


@dataclass(frozen=True)
class Ask:
    """text: what the model would say; then it says `end`, again and again. steps_late: how long the
    engine is not told that a stop string ended the answer. leaves_at: the step at which the client
    goes away."""

    prompt_tokens: int
    text: str
    end: int
    max_tokens: int
    stops: tuple[str, ...]
    steps_late: int
    leaves_at: int | None


ASKS = st.builds(
    Ask,
    prompt_tokens=st.integers(1, 20),
    text=TEXTS,
    end=st.sampled_from([EOS, STOP_TOKEN]),
    max_tokens=st.integers(1, 28),
    stops=STOPS.map(tuple),
    steps_late=st.integers(0, 3),
    leaves_at=st.none() | st.none() | st.integers(0, 12),
)


@dataclass
class Seen:
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    last: RequestOutput | None = None


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(folder)
    return Tokenizer(folder)


def expected(tokenizer: Tokenizer, ask: Ask, script: list[int]) -> tuple[str, str, int]:
    """(text, detail of the end, tokens) of an answer that nobody disturbs."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = ""
    for count, token in enumerate([*script, ask.end][: ask.max_tokens], start=1):
        ends = token == ask.end
        text += "" if ends else decoder.decode(tokenizer.spelling(token))
        if ends or count == ask.max_tokens:
            text += decoder.decode(b"", final=True)
        found = [(text.find(stop) + len(stop), -len(stop)) for stop in ask.stops if stop in text]
        if found:
            position, length = min(found)
            return text[: position + length], "stop_sequence", count
        if ends:
            return text, "eos" if token == EOS else f"stop_{token}", count
    return text, "max_tokens", ask.max_tokens


class Run:
    def __init__(
        self,
        tokenizer: Tokenizer,
        asks: list[Ask],
        depth: int,
        num_blocks: int,
        **options: Any,
    ) -> None:
        self.tokenizer, self.asks = tokenizer, asks
        self.scripts = [tokenizer.encode(ask.text, add_special_tokens=False) for ask in asks]
        self.scheduler = make_scheduler(num_blocks=num_blocks, max_num_seqs=5, **options)
        model = PagedModel(
            4,
            num_blocks,
            scheduled_rows=self.scheduler.rows,
            draw=self._drawn_token,
            num_drafts=options["num_speculative_tokens"],
        )
        self.pipeline = StepPipeline(self.scheduler, model, depth=depth)
        self.processor = StepReader(tokenizer)
        self.seen = [Seen() for _ in asks]
        self.gone: set[int] = set()
        self.told_at: dict[int, list[int]] = {}  # step → requests that the engine is to end

    def _drawn_token(self, request: int, position: int) -> int:
        script, at = self.scripts[request], position - self.asks[request].prompt_tokens
        return script[at] if at < len(script) else self.asks[request].end

    def play(self) -> None:
        for number, ask in enumerate(self.asks):
            request = make_request(
                number, ask.prompt_tokens, max_tokens=ask.max_tokens,
                ignore_eos=ask.end != EOS, stop_token_ids=(STOP_TOKEN,) * (ask.end != EOS),
                stop_strings=ask.stops,
            )  # fmt: skip
            self.processor.add(request, str(number))
            self.pipeline.add(request)
        for step in range(3000):
            if not self.pipeline.has_work() and not self.told_at:
                return
            self._step(step)
        raise AssertionError("no progress")

    def _step(self, step: int) -> None:
        for number, ask in enumerate(self.asks):
            if ask.leaves_at == step:
                self.gone.add(number)
                self.processor.discard(number)
                self._end([number])
        self._end(self.told_at.pop(step, []))
        result = self.pipeline.step(float(step))
        if result is not None:
            rows = [(request, *run) for request, run in result.runs()]
            self._show(step, rows, result.finished)
        self.scheduler.blocks.pool.check_integrity()

    def _end(self, numbers: list[int]) -> None:
        finished = self.pipeline.abort(numbers)
        if finished:
            self._show(-1, [], finished)

    def _show(self, step, rows, finished) -> None:
        shown = self.processor.process(stream_body(rows, finished), float(step))
        for number in shown.abort_ids:
            self.told_at.setdefault(step + 1 + self.asks[number].steps_late, []).append(number)
        for number, output in shown.outputs:
            seen = self.seen[number]
            assert seen.last is None, "an output behind the last one"
            assert number not in self.gone, "an output for nobody"
            seen.texts.append(output.text)
            seen.tokens += output.output_tokens
            seen.last = output if output.finished else None


@settings(max_examples=examples(24, more=125), deadline=None)
@given(
    asks=st.lists(ASKS, min_size=1, max_size=7),
    depth=st.integers(0, 1),
    policy=st.sampled_from(["mixed", "prefill_first"]),
    num_blocks=st.integers(16, 30),
    drafts=st.sampled_from([0, 0, 1, 4]),
)
def test_every_client_gets_its_own_text_and_reason(
    tokenizer, asks, depth, policy, num_blocks, drafts
) -> None:
    run = Run(tokenizer, asks, depth, num_blocks, policy=policy, num_speculative_tokens=drafts)
    run.play()
    assert len(run.processor) == 0
    assert run.scheduler.blocks.pool.num_referenced == 0
    for number, (ask, script, seen) in enumerate(zip(asks, run.scripts, run.seen, strict=True)):
        text, detail, count = expected(tokenizer, ask, script)
        got = "".join(seen.texts)
        if number in run.gone and seen.last is None:
            assert text.startswith(got)
            continue
        assert seen.last is not None, "an answer never ended"
        assert (got, seen.last.finish_detail) == (text, detail)
        assert seen.last.num_output_tokens == len(seen.tokens) == count
        assert seen.tokens == [*script, ask.end][:count]
