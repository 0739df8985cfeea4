"""HandedRequest: an open request on its way to another replica of the model, and its tokens back.

A replica reports only token ids: the server that holds the client's connection handles text, stop
strings and the shape of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from atom.model_engine.request import Request, RequestOutput, TokenLogprobs
from atom.model_engine.wire.engine_protocol import FinishedRow, StreamBody
from atom.model_engine.wire.logprob_rows import LogprobRows, LogprobsBody

ANY_WEIGHTS = ""


class HandedRequest(msgspec.Struct, frozen=True):
    """Hold a request with its answer so far. name: its client's name of it. weights_version: of the
    weights that it began with; ANY_WEIGHTS if it has not begun. An adapter's number is its sender's
    own: its name identifies it here, and the version proves equal weights."""

    request: Request
    name: str
    weights_version: str


def step_of(number: int, output: RequestOutput) -> StreamBody:
    """Convert a replica's output for a request to a core's step that has it under `number`."""
    rows = len(output.output_tokens)
    finished = []
    if output.finish_reason is not None:
        reason, detail = output.finish_reason.value, output.finish_detail or ""
        row = FinishedRow(number, reason, detail, output.num_cached_tokens)
        finished.append(msgspec.structs.replace(row, param=output.error_param))
    return StreamBody(
        request_ids=np.array([number] * bool(rows), dtype="<i8").tobytes(),
        token_ids=np.array(output.output_tokens, dtype="<i4").tobytes(),
        counts=np.array([rows] * (rows > 1), dtype="<i4").tobytes(),
        finished=finished,
        logprobs=_packed(number, output.logprobs or ()),
        prompt_logprobs=_packed(number, output.prompt_logprobs or ()),
    )


def _packed(number: int, entries: Sequence[TokenLogprobs | None]) -> LogprobsBody | None:
    """Pack entries of one request, which all have as many alternatives."""
    told = [each for each in entries if each is not None]
    if not told:
        return None
    columns = [((each.token_id, each.logprob), *each.top_logprobs) for each in told]
    return LogprobsBody.packed(
        LogprobRows(
            request_ids=np.full(len(told), number, dtype=np.int64),
            token_ids=np.array([[pair[0] for pair in row] for row in columns], dtype=np.int32),
            logprobs=np.array([[pair[1] for pair in row] for row in columns], dtype=np.float32),
            ranks=np.array([each.rank for each in told], dtype=np.int32),
        )
    )
