"""What `atom preflight` says to people: a verdict, the machine, and a row for each kind of model.

Pure but for printing. The operations behind each number are in the file that --report writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Console
from rich.table import Table

from atom.self_test.report import Report

_LOG_COLUMNS = 100
_IMPORTED = "imported"  # and the version behind it


class Verdict(StrEnum):
    """Say whether a machine can serve models."""

    READY = "ready"
    PARTLY = "partly ready"
    NOT_READY = "not ready"


@dataclass(frozen=True, slots=True)
class KindRow:
    """A kind of model. backends: the chosen ones with their numbers of operations, the most used
    one first; or the reason why none computes it."""

    kind: str
    served: bool
    backends: str


def verdict_of(report: Report) -> tuple[Verdict, str]:
    """Judge a machine, in one sentence that ends with the remedy if there is one."""
    unserved = report.unserved
    place = "the CPU" if report.device == "cpu" else f"the {report.device} devices"
    if len(unserved) == len(report.chosen):
        reason = next(iter(kind_rows(report))).backends if report.chosen else "nothing was tried"
        return Verdict.NOT_READY, f"no kind of model is computed on {place}: {reason}"
    if unserved:
        others = f"{', '.join(unserved)}: not computed on {place}; the table has the reasons"
        return Verdict.PARTLY, f"models are served on {place}, but not these kinds: {others}"
    if report.device == "cpu":
        return Verdict.READY, (
            "models are served on the CPU, which is slow; for a GPU, start the container with its "
            "devices and install its driver"
        )
    return Verdict.READY, f"all kinds of models are served on {place}"


def kind_rows(report: Report) -> Iterator[KindRow]:
    """Yield a row for each kind of model."""
    for kind, choice in report.chosen.items():
        chosen = choice.get("chosen")
        if not isinstance(chosen, dict):
            yield KindRow(kind, False, str(choice.get("error")))
            continue
        counts = Counter(chosen.values()).most_common()
        yield KindRow(kind, True, ", ".join(f"{name} ({count})" for name, count in counts))


def machine_rows(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the label and text of each fact about the machine."""
    yield "device", f"{report.device} {report.architecture or ''}".strip()
    imported = {
        name: found.removeprefix(_IMPORTED).strip()
        for name, found in report.software.imports.items()
        if found.startswith(_IMPORTED)
    }
    versions = {**report.software.versions, **imported}
    yield "software", ", ".join(f"{name} {text}".strip() for name, text in versions.items())
    for line in report.machine.lines():
        yield "machine", line
    for one, other in report.apart:
        yield "links", f"device {one} cannot read the memory of device {other}"
    for name, reason in report.unusable.items():
        yield "not used", f"backend {name}: {reason}"
    for name, found in report.software.imports.items():
        if name not in imported:
            yield "not installed", f"{name}: {found}"
    for text in report.advice:
        yield "advice", text


def print_check(report: Report) -> None:
    """Print the verdict, the facts and the kinds of models on stdout."""
    console = Console()
    if not console.is_terminal:  # rich would assume 80 columns
        console.width = _LOG_COLUMNS
    verdict, sentence = verdict_of(report)
    console.print(f"{verdict}: {sentence}", markup=False, highlight=False)
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    before = ""
    for label, text in machine_rows(report):
        facts.add_row("" if label == before else label, text)
        before = label
    console.print(facts, markup=False)
    kinds = Table(title="kinds of models", title_justify="left")
    for header in ("kind", "served", "backends (operations)"):
        kinds.add_column(header, overflow="fold")
    for row in kind_rows(report):
        kinds.add_row(row.kind, "yes" if row.served else "no", row.backends)
    console.print(kinds, markup=False)
