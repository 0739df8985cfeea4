"""Write the reference pages of request fields and of other servers' flags from their tables.

    python -m tools.generate_reference

The tables are the engine's own (`request_fields`, `flags.other_flags`); which server has a field is
in the lists that lie with the tests. A test holds the pages against this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from atom.entrypoints.flags.flag_row import FlagVerdict
from atom.entrypoints.flags.other_flags import OTHER_FLAGS
from atom.entrypoints.request_fields.field_row import Endpoint, FieldRow, Verdict
from atom.entrypoints.request_fields.field_table import TABLE
from tests.support.peers import FIELD_LISTS, fields_of

DOCS = Path(__file__).resolve().parents[1] / "docs" / "guides"
FIELDS_PAGE = DOCS / "request-fields.md"
FLAGS_PAGE = DOCS / "flags-of-other-servers.md"
_NAMES = {"openai": "OpenAI", "vllm": "vLLM", "sglang": "SGLang", "llama_cpp": "llama.cpp"}
_GENERATED = "<!-- Written by `make generate` from the engine's tables. -->\n"
_FIELDS_HEAD = f"""# Request fields
{_GENERATED}
Every request field of openai-python 3.57, vLLM 0.33, SGLang 0.5.23 and llama.cpp's server for
`/v1/chat/completions`, `/v1/completions`, `/tokenize` and `/detokenize`, and what it does here. A
field within a refused one is refused with it. A refused field is HTTP 400 with code
`unsupported_parameter` and the remedy, unless it is null or has a value that asks for nothing.
What belongs to no server and is not misspelled has no effect, and the answer's header
`X-Ignored-Fields` names it.
"""
_FLAGS_HEAD = f"""# Flags of other servers
{_GENERATED}
Every flag of `vllm serve` 0.33, SGLang 0.5.23's `launch_server` and upstream ATOM (and older ones
that people still type) is a flag here, another name of one, taken without effect, or refused with
its remedy. `atom serve --help=all` lists what there is.
"""


def fields_page() -> str:
    peers = _peers_by_field()
    parts = [_FIELDS_HEAD]
    for verdict, title, column in (
        (Verdict.HONOURED, "Honoured", "note"),
        (Verdict.HARMLESS, "Harmless: taken, and an answer is the same without it", "why"),
        (Verdict.REFUSED, "Refused", "instead"),
    ):
        parts.append(f"\n## {title}\n| field | in | of | {column} |\n|---|---|---|---|\n")
        parts += [_field_line(row, peers) for row in TABLE if row.verdict is verdict]
    return "".join(parts)


def _field_line(row: FieldRow, peers: dict[tuple[str, str], list[str]]) -> str:
    has = dict.fromkeys(peer for each in row.endpoints for peer in peers[each, row.path])
    where = "all" if len(row.endpoints) == len(Endpoint) else ", ".join(row.endpoints)
    return f"| `{row.path}` | {where} | {', '.join(has)} | {_cell(row.note)} |\n"


def _peers_by_field() -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for peer in FIELD_LISTS:
        for field in dict.fromkeys(fields_of(peer)):
            found[field].append(_NAMES[peer])
    return found


def flags_page() -> str:
    same = [row for row in OTHER_FLAGS if row.verdict is FlagVerdict.SAME]
    parts = [_FLAGS_HEAD, "\n## Other names of flags\n| there | here |\n|---|---|\n"]
    parts += [f"| {_flags(row.flags)} | `{row.note}` |\n" for row in same]
    for verdict, title, column in (
        (FlagVerdict.UNNEEDED, "Taken without effect, which the log says", "why"),
        (FlagVerdict.REFUSED, "Refused", "instead"),
    ):
        parts.append(f"\n## {title}\n| flags | {column} |\n|---|---|\n")
        for row in (row for row in OTHER_FLAGS if row.verdict is verdict):
            only = f" ({_flags(row.values)})" if row.values else ""
            parts.append(f"| {_flags(row.flags)}{only} | {_cell(row.note)} |\n")
    return "".join(parts)


def _flags(flags: Iterable[str]) -> str:
    return ", ".join(f"`{flag}`" for flag in flags)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    FIELDS_PAGE.write_text(fields_page(), encoding="utf-8")
    FLAGS_PAGE.write_text(flags_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
