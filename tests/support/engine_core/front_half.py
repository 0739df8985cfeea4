"""For tests of the engine's front half: a model folder without weights, and a core without a model.

`EchoCore` implements the same port as CoreManager and answers with the prompt's own tokens, so a
test knows every answer without computing one. It can be told to hold its tokens back, to release
them one step at a time, and to die.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from atom.config import Config, EngineOptions, build_config
from atom.model_engine.request import Request
from atom.model_engine.wire.core_port import CoreEvent, CoreFailed
from atom.model_engine.wire.core_stats import StatsBody
from atom.model_engine.wire.engine_protocol import (
    ConcurrencyRow,
    EngineReport,
    FinishedRow,
    RankStats,
    StreamBody,
    UtilityResponseBody,
)
from atom.model_engine.wire.logprob_rows import LogprobRows, LogprobsBody
from tests.support.models.byte_tokenizer import END_OF_TEXT, TURN_END, write_byte_tokenizer

SERVED_NAME = "tiny"


def write_model_folder(folder: Path, *, context_tokens: int = 64, **generation: Any) -> Path:
    """All files of a checkpoint but the weights; `generation` goes into generation_config.json."""
    tokenizer = write_byte_tokenizer(folder)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": context_tokens,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "eos_token_id": [tokenizer.token_to_id(TURN_END), tokenizer.token_to_id(END_OF_TEXT)],
    }
    (folder / "config.json").write_text(json.dumps(config))
    if generation:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def build_test_config(folder: Path, **options: Any) -> Config:
    settings: dict[str, Any] = {"served_model_name": SERVED_NAME, "device": "cpu", **options}
    return build_config(EngineOptions.of(model=str(folder), **settings))


def stream_body(
    rows: Sequence[tuple[int, ...]] = (),
    finished: Sequence[FinishedRow] = (),
    *,
    logprobs: LogprobRows | None = None,
    prompt_logprobs: LogprobRows | None = None,
) -> StreamBody:
    """One step's message from rows of a request id and the tokens that it got."""
    several = any(len(row) > 2 for row in rows)
    return StreamBody(
        request_ids=np.array([row[0] for row in rows], dtype="<i8").tobytes(),
        token_ids=np.array([token for row in rows for token in row[1:]], dtype="<i4").tobytes(),
        counts=np.array([len(row) - 1 for row in rows] * several, dtype="<i4").tobytes(),
        finished=list(finished),
        logprobs=LogprobsBody.packed(logprobs),
        prompt_logprobs=LogprobsBody.packed(prompt_logprobs),
    )


def engine_report(config: Config) -> EngineReport:
    return EngineReport(
        model=config.model.served_name,
        architecture=config.model.architecture,
        device="cpu (test)",
        dtype="float32",
        kv_cache_dtype="float32",
        backends={"attention": "torch_ref", "linear": "torch_ref", "sample": "torch_ref"},
        block_size=config.cache.block_size,
        num_blocks=100,
        max_model_len=config.model.max_model_len,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        weights_bytes=1_000_000,
        peak_bytes=2_000_000,
        kv_cache_bytes=3_000_000,
        kv_bytes_per_token=512,
        kv_tokens=100 * config.cache.block_size,
        total_memory_bytes=10_000_000_000,
        limited_by="memory",
        concurrency=[ConcurrencyRow(config.model.max_model_len, 25)],
        tensor_parallel_size=1,
        data_parallel_size=1,
        version="0.0.0",
    )


def rank_stats(rank: int, number: int, **counts: int) -> RankStats:
    """What is not named is 0."""
    required = [each.name for each in msgspec.structs.fields(StatsBody) if each.required]
    return RankStats(rank, number, StatsBody(**(dict.fromkeys(required, 0) | counts)))


@dataclass(slots=True)
class _Echo:
    request: Request
    sent: int = 0


@dataclass
class EchoCore:
    """Answers each request with its prompt's tokens, over and over, until its length is reached.

    ready_on_start: announce READY at once. held: keep tokens until `release`.
    """

    config: Config
    on_event: Callable[[CoreEvent], None]
    ready_on_start: bool = True
    held: bool = False
    cached_tokens: int = 0
    added: list[Request] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    utilities: list[str] = field(default_factory=list)
    started: bool = False
    stopped: bool = False
    _open: dict[int, _Echo] = field(default_factory=dict)
    _told: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    # ---- the port -----------------------------------------------------------------------------

    def start(self) -> None:
        self.started = True
        if self.ready_on_start:
            self.on_event(engine_report(self.config))

    def add_requests(self, requests: Sequence[Request]) -> None:
        with self._lock:
            for request in requests:
                self.added.append(request)
                self._open[request.id] = _Echo(request, len(request.output_token_ids))
            while self._open and not self.held:
                self.step()

    def abort_requests(self, request_ids: Sequence[int]) -> None:
        with self._lock:
            self.aborted += request_ids
            rows = [
                FinishedRow(number, "abort", "aborted", self.cached_tokens)
                for number in request_ids
                if self._open.pop(number, None) is not None
            ]
            if rows:
                self.on_event(stream_body(finished=rows))

    def call_utility(self, call_id: int, method: str, args: Sequence[Any] = ()) -> None:
        self.utilities.append(method)
        if not self.held:
            error = None if method == "reset_prefix_cache" else f"no utility {method!r}"
            self.on_event(UtilityResponseBody(call_id, error, [None]))

    def shutdown(self, timeout_seconds: float = 10.0) -> None:
        self.stopped = True

    # ---- the test's levers --------------------------------------------------------------------

    @property
    def open_requests(self) -> list[Request]:
        """Return the requests that have not ended."""
        with self._lock:
            return [echo.request for echo in self._open.values()]

    def become_ready(self) -> None:
        self.on_event(engine_report(self.config))

    def step(self) -> None:
        """One token for every open request."""
        with self._lock:
            rows, finished = [], []
            for number, echo in list(self._open.items()):
                prompt = echo.request.prompt_token_ids
                rows.append((number, prompt[echo.sent % len(prompt)]))
                echo.sent += 1
                if len(prompt) + echo.sent >= echo.request.max_total_tokens:
                    row = FinishedRow(number, "length", "max_tokens", self.cached_tokens, 0.0)
                    finished.append(row)
                    del self._open[number]
            self.on_event(stream_body(rows, finished))

    def release(self) -> None:
        with self._lock:
            self.held = False
            while self._open:
                self.step()

    def report_stats(self, rank: int = 0, **counts: int) -> None:
        self._told += 1
        self.on_event(rank_stats(rank, self._told, **counts))

    def die(self, message: str = "killed by the test") -> None:
        self._open.clear()
        self.on_event(CoreFailed(message, user_error=False))
