"""The page of errors: each HTTP status and code of the server with its remedy, and exit codes.

What an error means is written in http_errors.yaml; a test finds every status and code in the
engine's sources and holds that list against them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from atom.entrypoints.http.errors import describe
from atom.errors import RequestError
from tools.reference.markdown import code, head, table

_TEXTS = Path(__file__).with_suffix(".yaml")
_HEAD = """
Every error has OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`. The message says
what is wrong, where, and what to do. Within an event stream an error is an event of the same shape,
and the stream ends after it. `code` is `null` if the table has none. 429 and 503 carry
`Retry-After`.
"""
_EXITS = """
| code | meaning |
|---|---|
| 0 | done; a server that was asked to end has drained |
| 1 | an error, which is the last line on standard error: what, where, and the remedy |
| 2 | a flag is wrong; all wrong flags of the line are named |
| 130 | interrupted from the keyboard |
| 141 | the reader of the output has exited |
"""
_COLUMNS = ("status", "type", "code", "when", "what to do")


@dataclass(frozen=True, slots=True)
class HttpError:
    """One kind of error; code: of the body, None where it is null."""

    status: int
    when: str
    remedy: str
    code: str | None = None


def http_errors() -> list[HttpError]:
    return [HttpError(**row) for row in yaml.safe_load(_TEXTS.read_text(encoding="utf-8"))]


def page() -> str:
    rows = map(_row, http_errors())
    return head("Errors", _HEAD) + f"\n{table(_COLUMNS, rows)}\n## Exit codes of `atom`\n{_EXITS}"


def _row(error: HttpError) -> tuple[str, str, str, str, str]:
    kind = describe(RequestError("", status=error.status))[1].error.type  # as the server answers
    name = code(error.code) if error.code else ""
    return code(error.status), code(kind), name, error.when, error.remedy
