"""The table that a server prints when it is ready: model, device and capacity, and then the next
steps.

`startup_rows` and `next_steps` are pure; printing is one call around them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from atom.entrypoints.startup.next_steps import Address, next_steps
from atom.entrypoints.startup.supported_endpoints import Offer
from atom.model_engine.wire.engine_protocol import EngineReport
from atom.model_engine.wire.host_tier_report import HostTierReport

_LOG_COLUMNS = 140
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def startup_rows(report: EngineReport, *, verbose: bool = False) -> list[tuple[str, str]]:
    """Return the label and text of each row, in order. verbose: with every operation's backend."""
    rows = [
        ("model", report.model),
        ("architecture", f"{report.architecture}, {report.dtype}"),
        ("device", f"{report.device}, {bytes_text(report.total_memory_bytes)}"),
        *([("backends", _backends_text(report.backends))] if verbose else []),
        ("weights", _weights_text(report)),
        ("peak while running", bytes_text(report.peak_bytes)),
        *([("states", _states_text(report))] if report.state_bytes else []),
        (
            "KV cache" if report.data_parallel_size == 1 else "KV cache of each rank",
            f"{report.num_blocks:,} blocks of {report.block_size} tokens = "
            f"{report.kv_tokens:,} tokens ({report.kv_cache_dtype}, "
            f"{bytes_text(report.kv_cache_bytes)}, "
            f"{bytes_text(report.kv_bytes_per_token)} per token; limited by {report.limited_by})",
        ),
        *([("KV tier", _tier_text(report.host_tier))] if report.host_tier else []),
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


def _weights_text(report: EngineReport) -> str:
    size = bytes_text(report.weights_bytes)
    return f"{size}, {report.conversion}" if report.conversion else size


def _states_text(report: EngineReport) -> str:
    text = f"{bytes_text(report.state_bytes)} of all sequences that may run"
    if report.max_num_seqs < report.asked_num_seqs:
        text += f" ({report.max_num_seqs:,}, since {report.asked_num_seqs:,} would take too much)"
    if not report.num_checkpoints:
        return text
    return (
        f"{text}, and {report.num_checkpoints:,} checkpoints, one every "
        f"{report.checkpoint_tokens:,} tokens of a cached prefix"
    )


def _tier_text(tier: HostTierReport) -> str:
    text = (
        f"{tier.num_pages:,} pages = {tier.tokens:,} tokens in the host's memory "
        f"({bytes_text(tier.size_bytes)} for each copy of the model)"
    )
    if tier.num_states:
        text += f", and {tier.num_states:,} checkpoints"
    if tier.disk_bytes:
        text += f"; {tier.disk_tokens:,} tokens in files ({bytes_text(tier.disk_bytes)})"
    return text


class _Stderr(Console):
    """Prints nothing more once the reader of stderr has gone, and lets the server serve."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def print_startup(
    models: Sequence[tuple[EngineReport, Offer]], address: Address, *, verbose: bool = False
) -> None:
    """Print the start-up report of each model, and then the next steps, on stderr, as every message
    of the programs."""
    console = _Stderr(stderr=True)
    if not console.is_terminal:  # rich would assume 80 columns and fold rows of a pod's log
        console.width = _LOG_COLUMNS
    for report, _ in models:
        table = Table(title=f"ATOM {report.version}", show_header=False, title_justify="left")
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for label, text in startup_rows(report, verbose=verbose):
            table.add_row(label, text)
        table.add_row("listens on", address.url)
        console.print(table, markup=False)
    for line in next_steps(address, [offer for _, offer in models]):
        # Not folded: a command is copied verbatim.
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def bytes_text(size_bytes: float) -> str:
    """Return binary units with three digits or more: 512 B, 1.50 GiB, 1020 MiB."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} B"
    power = 1
    while size_bytes >= 1024 ** (power + 1) and power < len(_UNITS):
        power += 1
    size, unit = size_bytes / 1024**power, _UNITS[power - 1]
    digits = 2 if size < 10 else 1 if size < 100 else 0
    return f"{size:.{digits}f} {unit}"


def _backends_text(backends: dict[str, str]) -> str:
    """Return the common backend once, then each op that differs."""
    if not backends:
        return "none"
    ((common, count),) = Counter(backends.values()).most_common(1)
    others = [f"{op}={name}" for op, name in sorted(backends.items()) if name != common]
    return ", ".join([common if not others else f"{common} ({count} ops)", *others])
