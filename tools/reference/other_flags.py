"""The page of other servers' flags: another name of ours, without effect, or refused."""

from __future__ import annotations

from atom.entrypoints.bench.flags_of_vllm import VLLM_BENCH_FLAGS
from atom.entrypoints.flags.flag_row import FlagRow, FlagVerdict
from atom.entrypoints.flags.other_flags import OTHER_FLAGS
from tools.reference.markdown import code, codes, head, table

_BENCH = """
Every flag of `vllm bench serve` 0.33 is [a flag of `atom bench serve`](flags.md) or in this table.
"""
_HEAD = """
Every flag of `vllm serve` 0.33, SGLang 0.5.23's `launch_server` and upstream ATOM (and older ones
that people still type) is [a flag here](flags.md), another name of one, taken without effect, or
refused with its remedy. `atom serve --help=all` lists what there is.
"""
_SECTIONS = (
    (FlagVerdict.UNNEEDED, "Taken without effect, which the log says", "why"),
    (FlagVerdict.REFUSED, "Refused", "instead"),
)


def page() -> str:
    same = [row for row in OTHER_FLAGS if row.verdict is FlagVerdict.SAME]
    rows = ((codes(row.flags), code(row.note)) for row in same)
    parts = [head("Flags of other servers", _HEAD)]
    parts.append(f"\n## Other names of flags\n{table(('there', 'here'), rows)}")
    for verdict, title, column in _SECTIONS:
        rows = (_row(row) for row in OTHER_FLAGS if row.verdict is verdict)
        parts.append(f"\n## {title}\n{table(('flags', column), rows)}")
    bench = ((*_row(row), row.verdict.value) for row in VLLM_BENCH_FLAGS)
    columns = ("flags", "here, why or instead", "effect")
    parts.append(f"\n## Flags of `vllm bench serve`\n{_BENCH}\n{table(columns, bench)}")
    return "".join(parts)


def _row(row: FlagRow) -> tuple[str, str]:
    only = f" ({codes(row.values)})" if row.values else ""
    return codes(row.flags) + only, row.note
