"""Log-probabilities of a step, on their way from the runner to the front end.

One row per token of a request that asked; arrays, and packed arrays on the wire, since a prompt may
have thousands of tokens. Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from atom.model_engine.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """Log-probabilities of one token per row, of requests that asked for them.

    request_ids [n] int64; token_ids, logprobs [n, 1 + k] int32 and float32: the row's own token and
    then the k likeliest (k: the most that any of them asked for); ranks [n] int32: 1 + how many
    tokens were more likely than the own one.
    """

    request_ids: NDArray[np.int64]
    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    ranks: NDArray[np.int32]

    def where(self, chosen: NDArray[np.bool_]) -> LogprobRows | None:
        """Return the chosen rows; None if there are none."""
        if not chosen.any():
            return None
        return LogprobRows(
            self.request_ids[chosen],
            self.token_ids[chosen],
            self.logprobs[chosen],
            self.ranks[chosen],
        )

    def entries(self) -> Iterator[tuple[int, TokenLogprobs]]:
        """Yield each row's request id and its token's log-probabilities."""
        columns = (self.request_ids, self.ranks, self.token_ids, self.logprobs)
        for request_id, rank, (token_id, *top_ids), (logprob, *top) in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            likeliest = tuple(zip(top_ids, top, strict=True))
            yield request_id, TokenLogprobs(token_id, logprob, rank, likeliest)


class PromptEntries(Sequence[TokenLogprobs | None]):
    """Present one entry per token of a prompt, the first None because no token precedes it. Stores
    arrays, a tenth of the entries' size, and builds entries on access."""

    def __init__(self, wanted: int) -> None:
        """wanted: how many of the likeliest tokens the request asked for."""
        self._wanted = wanted
        self._parts: list[LogprobRows] = []

    def add(self, rows: LogprobRows) -> None:
        """Append a step's rows, cut to the number of alternatives that this request wanted."""
        columns = 1 + self._wanted
        self._parts.append(
            LogprobRows(
                rows.request_ids,
                rows.token_ids[:, :columns].copy(),
                rows.logprobs[:, :columns].copy(),
                rows.ranks,
            )
        )

    def clear(self) -> None:
        """Drop all rows."""
        self._parts.clear()

    def __len__(self) -> int:
        return 1 + sum(len(part.ranks) for part in self._parts)

    def __iter__(self) -> Iterator[TokenLogprobs | None]:
        yield None
        for part in self._parts:
            for _, entry in part.entries():
                yield entry

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


class LogprobsBody(msgspec.Struct, frozen=True):
    """Log-probabilities of one token per row, packed; the columns are LogprobRows'.

    request_ids: int64 [n]; ranks: int32 [n]; token_ids: int32, logprobs: float32, both [n, columns]
    with a row's own token first."""

    columns: int
    request_ids: bytes
    ranks: bytes
    token_ids: bytes
    logprobs: bytes

    def __post_init__(self) -> None:
        rows, rest = divmod(len(self.request_ids), 8)
        sizes = (len(self.ranks), len(self.token_ids), len(self.logprobs))
        if rest or self.columns < 1 or sizes != (4 * rows, *2 * (4 * rows * self.columns,)):
            raise ValueError(f"{sizes} bytes do not hold {rows} rows of log-probabilities")

    @staticmethod
    def packed(rows: LogprobRows | None) -> LogprobsBody | None:
        if rows is None:
            return None
        return LogprobsBody(
            columns=rows.token_ids.shape[1],
            request_ids=rows.request_ids.tobytes(),
            ranks=rows.ranks.tobytes(),
            token_ids=rows.token_ids.tobytes(),
            logprobs=rows.logprobs.tobytes(),
        )

    def rows(self) -> LogprobRows:
        return LogprobRows(
            np.frombuffer(self.request_ids, dtype="<i8"),
            np.frombuffer(self.token_ids, dtype="<i4").reshape(-1, self.columns),
            np.frombuffer(self.logprobs, dtype="<f4").reshape(-1, self.columns),
            np.frombuffer(self.ranks, dtype="<i4"),
        )
