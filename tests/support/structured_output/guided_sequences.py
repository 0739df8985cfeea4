"""Guided sequences without an engine: a compiler, the processes that follow grammars, and rows that
take what the masks leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.structured_output.compile_messages import CompilerSetup
from atom.model_engine.structured_output.grammar_compiler import GrammarCompiler
from atom.model_engine.structured_output.guided_rows import GuidedEnd, GuidedRows, StepMask
from atom.model_engine.structured_output.mask_arena import MaskArena
from atom.model_engine.structured_output.matcher_pool import MatcherPool
from atom.sampling_params import SamplingParams
from atom.structured_outputs import GrammarSpec, StructuredOutputsParams
from atom.tokenizer import Tokenizer
from tests.support.models.byte_tokenizer import TURN_END, write_byte_tokenizer
from tests.support.waiting import HANG_SECONDS

VOCAB = 320  # some ids more than the tokenizer has, as padded models have
MOST_TOKENS = 3000


class GuidedSequences:
    """Over the byte tokenizer. ends: whether the model has an end token; pool: options of
    the MatcherPool."""

    def __init__(self, folder: Path, *, ends: bool = True, **pool: Any) -> None:
        write_byte_tokenizer(folder)
        self.tokenizer = Tokenizer(folder)
        (self.end,) = self.tokenizer.encode(TURN_END, add_special_tokens=False)
        self.ends = [self.end] if ends else []
        arena = MaskArena(VOCAB)
        setup = CompilerSetup(
            tokenizer_folder=str(folder),
            vocab_size=VOCAB,
            end_token_ids=self.ends,
            masks_fd=arena.fd,
        )
        self.compiler = GrammarCompiler(setup, lambda: None)
        self.pool = MatcherPool(arena, self.compiler.open_process, **pool)

    def close(self) -> None:
        self.pool.close()
        self.compiler.close()

    def rows(self, request_id: int, **params: Any) -> GuidedRows:
        """With one sequence in it, whose first mask is there."""
        sampling = SamplingParams(**params)
        assert sampling.structured_outputs is not None
        return self.rows_of(request_id, sampling.structured_outputs.spec(), sampling)

    def rows_of(self, request_id: int, spec: GrammarSpec, sampling: SamplingParams) -> GuidedRows:
        """The same for a grammar that no request can ask for."""
        grammar = self.compiler.compile(spec, "").result(HANG_SECONDS)
        rows = GuidedRows(VOCAB, self.ends, self.pool)
        rows.enter(request_id, grammar, sampling)
        while not rows.news().resumed:
            self.pool.wait()
        return rows

    def writes(self, spec: GrammarSpec, text: str) -> bool:
        """Whether a text is a whole answer."""
        asked = StructuredOutputsParams(regex="what stands for it")
        rows = self.rows_of(7, spec, SamplingParams(structured_outputs=asked))
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        whole = True
        for token in tokens:
            whole = whole and not accept(rows, 7, token)
        whole = whole and self.end in allowed(rows, 7)
        rows.leave([7])
        return whole

    def draw(self, seed: int, **kind: Any) -> str:
        """A whole answer, each token drawn evenly from those allowed."""
        random = np.random.default_rng(seed)
        rows = self.rows(7, structured_outputs=StructuredOutputsParams(**kind))
        tokens: list[int] = []
        for _ in range(MOST_TOKENS):
            tokens.append(int(random.choice(allowed(rows, 7))))
            if tokens[-1] == self.end:
                rows.leave([7])
                return b"".join(self.tokenizer.token_bytes(token) for token in tokens[:-1]).decode()
            assert rows.accept([(7, tokens[-1:])]) == []
        raise AssertionError("the answer had no end")


def batch_of(*request_ids: int, samples: list[bool] | None = None) -> ScheduledBatch:
    count = len(request_ids)
    return ScheduledBatch(
        new_rows=(),
        block_appends=np.zeros((0, 3), dtype=np.int32),
        slots=np.arange(count, dtype=np.intp),
        req_ids=np.array(request_ids, dtype=np.int64),
        num_computed_tokens=np.zeros(count, dtype=np.int32),
        num_scheduled_tokens=np.ones(count, dtype=np.int32),
        samples=np.array(samples or [True] * count),
        num_decodes=count,
    )


def masked(rows: GuidedRows, batch: ScheduledBatch) -> StepMask:
    """What the batch's rows may get, however long their masks take."""
    late: Any = True
    while late:
        late = (mask := rows.mask(batch)).late
    return mask


def allowed(rows: GuidedRows, request_id: int) -> list[int]:
    """Token ids that the next mask of a sequence leaves."""
    mask = masked(rows, batch_of(request_id))
    assert not mask.ends
    (bits,) = mask.mask.bits
    found = np.unpackbits(bits.view(np.uint8), bitorder="little").nonzero()[0].tolist()
    assert max(found) < VOCAB
    return list(found)


def accept(rows: GuidedRows, request_id: int, token: int) -> list[GuidedEnd]:
    """Who ends of it, at once or instead of a next mask."""
    at_once = rows.accept([(request_id, [token])])
    return at_once or list(masked(rows, batch_of(request_id)).ends)
