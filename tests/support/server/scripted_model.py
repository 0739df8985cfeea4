"""A scripted model behind the real server: what the model says is written by the test, and all else
is the server's own, from HTTP through chat template and tokenizer to parsers and events.

For agents and clients that nobody here wrote, in the test's event loop:

    def script(prompt: str) -> str:        # the prompt as the model reads it, markup and all
        return "Hello."

    async with scripted(tmp_path, script, template="qwen3") as rig:
        agent = await asyncio.create_subprocess_exec("codex", …, env={"BASE_URL": rig.url})
        await within(agent.wait(), "the agent's session")
    rig.core.prompts                       # every prompt that was asked, in order
    rig.core.cached_shares                 # of each, how much the prefix cache would have had

An answer is the text that the model would write, in the markup of its family: calls are written by
`tests.engine.answer_parsing.written.WRITERS[family]`, reasoning as `<think>…</think>`. It ends with
the model's end token, comes `tokens_per_step` at a time, and is cut by max_tokens and stop strings
as any answer. `in_turn` answers a list one by one. Grammars are not enforced: the script's answer
to a forced call must be a call. The family is known by the template, one of
tests/engine/unit/chat_templates (`<template>_like.jinja`).
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from atom.config import Config
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.request import Request
from atom.model_engine.wire.core_port import CoreEvent
from atom.model_engine.wire.engine_protocol import FinishedRow, UtilityResponseBody
from tests.support.engine_core.front_half import (
    build_test_config,
    engine_report,
    stream_body,
    write_model_folder,
)
from tests.support.server.http_app import HttpRig, serve_engine
from tests.support.server.seeing_model import AGENT_TEMPLATE, write_seeing_model

TEMPLATES = Path(__file__).parents[2] / "engine" / "unit" / "chat_templates"
CONTEXT_TOKENS = 1_000_000  # bytes are tokens here, and agents begin with a hundred thousand
Script = Callable[[str], str]


def in_turn(
    *answers: str, where: Callable[[str], bool] = lambda prompt: True, otherwise: str = "OK."
) -> Script:
    """The answers one by one, to the prompts of which `where` holds; `otherwise` to all others
    (agents ask for titles and summaries beside), and when there are no more."""
    left = list(answers)
    return lambda prompt: left.pop(0) if left and where(prompt) else otherwise


@dataclass
class ScriptedCore:
    """A `CorePort` that answers by a script. prompts: that were asked, as the model reads them.
    cached_shares: the part of each that an earlier request had read or written, to whole blocks."""

    config: Config
    on_event: Callable[[CoreEvent], None]
    script: Script
    tokens_per_step: int = 4
    prompts: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    cached_shares: list[float] = field(default_factory=list)
    _seen: list[NDArray[np.int32]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        folder = Path(self.config.model.path)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        ends = json.loads((folder / "config.json").read_text())["eos_token_id"]
        self._end: int = ends[0]
        self.on_event(engine_report(self.config))

    def add_requests(self, requests: Sequence[Request]) -> None:
        with self._lock:
            for request in requests:
                self._answer(request)

    def abort_requests(self, request_ids: Sequence[int]) -> None:
        """Every answer is complete when it is asked for."""

    def call_utility(self, call_id: int, method: str, args: Sequence[Any] = ()) -> None:
        self.on_event(UtilityResponseBody(call_id, f"no utility {method!r}", [None]))

    def shutdown(self, timeout_seconds: float = 10.0) -> None:
        """Nothing runs."""

    def _answer(self, request: Request) -> None:
        prompt = request.prompt_token_ids
        text = self._tokenizer.decode(prompt, skip_special_tokens=False)
        self.requests.append(request)
        self.prompts.append(text)
        cached = self._cached_tokens(prompt)
        answer = self._tokenizer.encode(self.script(text), add_special_tokens=False).ids
        answer = [*answer, self._end]
        most = request.max_total_tokens - len(prompt)
        reason, detail = ("stop", "eos") if len(answer) <= most else ("length", "max_tokens")
        answer = answer[:most]
        self._seen.append(np.array([*prompt, *answer], dtype=np.int32))
        for start in range(0, len(answer), self.tokens_per_step):
            step = answer[start : start + self.tokens_per_step]
            last = start + len(step) == len(answer)
            row = FinishedRow(request.id, reason, detail, cached, 0.0)
            self.on_event(stream_body([(request.id, *step)], [row] if last else []))

    def _cached_tokens(self, prompt: Sequence[int]) -> int:
        """Count the tokens of the longest beginning in whole blocks that was computed before."""
        size, now = self.config.cache.block_size, np.array(prompt, dtype=np.int32)
        longest = 0
        for before in self._seen:
            most = min(len(before), len(now) - 1)
            differs = np.flatnonzero(before[:most] != now[:most])
            longest = max(longest, int(differs[0]) if len(differs) else most)
        cached = longest // size * size
        self.cached_shares.append(cached / len(prompt))
        return cached


@dataclass
class ScriptedRig(HttpRig):
    core: ScriptedCore


@contextlib.asynccontextmanager
async def scripted(
    folder: Path,
    script: Script,
    *,
    template: str = "qwen3",
    tokens_per_step: int = 4,
    api_key: str | None = None,
    reads_images: bool = False,
    **options: Any,
) -> AsyncIterator[ScriptedRig]:
    """Serve the script from a model folder that is written into `folder`. template: which family's;
    reads_images: the model has an encoder, and a template with images and hermes' calls; options:
    of the engine, such as served_model_name."""
    if reads_images:
        write_seeing_model(folder, context_tokens=CONTEXT_TOKENS)
        written = AGENT_TEMPLATE
    else:
        write_model_folder(folder, context_tokens=CONTEXT_TOKENS)
        written = (TEMPLATES / f"{template}_like.jinja").read_text()
    (folder / "chat_template.jinja").write_text(written)
    config = build_test_config(folder, **options)
    cores: list[ScriptedCore] = []

    def make_core(config: Config, on_event: Callable[[CoreEvent], None]) -> ScriptedCore:
        cores.append(ScriptedCore(config, on_event, script, tokens_per_step))
        return cores[0]

    async with serve_engine(AsyncLLMEngine(config, core_factory=make_core), api_key) as rig:
        await rig.engine.wait_ready()
        yield ScriptedRig(rig.state, rig.engine, rig.client, rig.port, cores[0])
