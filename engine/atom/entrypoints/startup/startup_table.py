"""The table a server prints once when it is ready: what it serves, on what, and how much of it.

`startup_rows` is pure (EngineReport → label and value); printing is one call around it.
"""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from atom.model_engine.wire.engine_protocol import EngineReport

_LOG_COLUMNS = 140
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def startup_rows(report: EngineReport) -> list[tuple[str, str]]:
    """Label and text of each row, in order."""
    rows = [
        ("model", report.model),
        ("architecture", f"{report.architecture}, {report.dtype}"),
        ("device", f"{report.device}, {bytes_text(report.total_memory_bytes)}"),
        ("backends", _backends_text(report.backends)),
        ("weights", bytes_text(report.weights_bytes)),
        ("peak while running", bytes_text(report.peak_bytes)),
        (
            "KV cache" if report.data_parallel_size == 1 else "KV cache of each rank",
            f"{report.num_blocks:,} blocks of {report.block_size} tokens = "
            f"{report.kv_tokens:,} tokens ({report.kv_cache_dtype}, "
            f"{bytes_text(report.kv_cache_bytes)}, "
            f"{bytes_text(report.kv_bytes_per_token)} per token; limited by {report.limited_by})",
        ),
        (
            "per step",
            f"at most {report.max_num_seqs:,} sequences, {report.max_num_batched_tokens:,} tokens",
        ),
    ]
    if report.tensor_parallel_size * report.data_parallel_size > 1:
        split = f"tensor {report.tensor_parallel_size}, data {report.data_parallel_size}"
        rows.append(("parallel", split))
    rows += [
        (f"fits at {row.context_tokens:,} tokens each", f"{row.sequences:,} sequences")
        for row in report.concurrency
    ]
    return rows


def print_startup_table(report: EngineReport, address: str | None = None) -> None:
    """Print the start-up report on stderr, as every message of the programs. address: where the
    server listens."""
    table = Table(title=f"ATOM {report.version}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, text in startup_rows(report):
        table.add_row(label, text)
    if address is not None:
        table.add_row("listens on", address)
    console = Console(stderr=True)
    if not console.is_terminal:  # rich would assume 80 columns and fold rows of a pod's log
        console.width = _LOG_COLUMNS
    console.print(table, markup=False)


def bytes_text(size_bytes: float) -> str:
    """Binary units with three digits or more: 512 B, 1.50 GiB, 1020 MiB."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} B"
    power = 1
    while size_bytes >= 1024 ** (power + 1) and power < len(_UNITS):
        power += 1
    size, unit = size_bytes / 1024**power, _UNITS[power - 1]
    digits = 2 if size < 10 else 1 if size < 100 else 0
    return f"{size:.{digits}f} {unit}"


def _backends_text(backends: dict[str, str]) -> str:
    """The common backend once, then each op that differs."""
    if not backends:
        return "none"
    ((common, count),) = Counter(backends.values()).most_common(1)
    others = [f"{op}={name}" for op, name in sorted(backends.items()) if name != common]
    return ", ".join([common if not others else f"{common} ({count} ops)", *others])
