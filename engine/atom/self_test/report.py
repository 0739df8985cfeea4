"""The reports of `atom preflight --report` and `--check`. --report writes the machine's facts and
the card's results for every operation and a small model into a file; --check runs none of them.

For each backend each exercise passes, fails with its error, or does not apply to this card;
operations are chosen for a few kinds of model, with the log's reasons; passed exercises are timed.
Knows no model files and starts no engine; a failing part is a line of the report, and the rest
continues.
"""

from __future__ import annotations

import io
import json
import logging
import tarfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from atom.model_ops.backends import load_backend, resolve_ops
from atom.model_ops.backends.op_case import ExpertsCase, LayerShapes, OpCase
from atom.model_ops.values import WeightFormat
from atom.self_test.attention_exercises import ASSEMBLY, GLUON, LATENT
from atom.self_test.environment import cards_and_tools, imports, variables
from atom.self_test.exercises import EXERCISES, SIGMOID, SOFTMAX
from atom.self_test.machine import Machine, advice, look_at_machine
from atom.self_test.parity_run import ParityRun, parity_run
from atom.utils import device as devices
from atom.utils.versions import software_versions

BACKENDS = ("aiter", "triton")
_PLAIN = OpCase(dtype=torch.bfloat16, kv_dtype=torch.bfloat16)
_DENSE = LayerShapes(attention=(ASSEMBLY,))
# Kinds of model that operations are chosen for.
CASES: dict[str, OpCase] = {
    "dense": replace(_PLAIN, layers=_DENSE),
    "dense, fp8 blocks": replace(
        _PLAIN, layers=_DENSE, formats=(WeightFormat.PLAIN, WeightFormat.FP8_BLOCKS)
    ),
    "experts, sinks": replace(
        _PLAIN,
        layers=LayerShapes(attention=(GLUON,)),
        experts=ExpertsCase(
            routings=(SOFTMAX,), formats=(WeightFormat.PLAIN,), sizes=((2048, 768),)
        ),
    ),
    "latent, fp8 experts": replace(
        _PLAIN,
        layers=LayerShapes(latent=(LATENT,)),
        experts=ExpertsCase(
            routings=(SIGMOID,), formats=(WeightFormat.FP8_BLOCKS,), sizes=((7168, 2048),)
        ),
    ),
}
_REPEATS = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one exercise on one backend. error: None if it passed; microseconds: of one
    pass of the exercise, including its comparison and the reference, so only outcomes on one card
    are comparable."""

    backend: str
    exercise: str
    error: str | None
    microseconds: float | None = None


@dataclass(frozen=True, slots=True)
class Software:
    """Describe the software of a machine. imports: packages, with the reason why one cannot be
    imported; variables: of the environment; tools: the output of the programs that describe
    cards."""

    versions: dict[str, str]
    imports: dict[str, str]
    variables: dict[str, str]
    tools: dict[str, str]


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a self-test of one card. chosen: by kind of model, operation → backend, and
    why others were passed over; unusable: backend → the reason why it cannot be used here; parity:
    of a whole engine, None without a card or if nothing was run; apart: pairs of devices that
    cannot read each other's memory, according to the runtime."""

    device: str
    architecture: str | None
    software: Software
    chosen: dict[str, dict[str, object]]
    unusable: dict[str, str]
    outcomes: list[Outcome]
    machine: Machine
    advice: list[str]
    apart: list[tuple[int, int]]
    parity: ParityRun | None

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    @property
    def passed(self) -> bool:
        return not self.failed and (self.parity is None or self.parity.passed)

    @property
    def unserved(self) -> list[str]:
        """List the kinds of model that no backend computes here."""
        return [name for name, choice in self.chosen.items() if "error" in choice]


def make_report(device_type: str, torch_device: torch.device, *, tries: bool = True) -> Report:
    """Report on the card that torch sees, with every backend that it can be used with. tries:
    whether exercises are run."""
    reasons = {name: "; ".join(load_backend(name).unusable) for name in BACKENDS}
    unusable = {name: said for name, said in reasons.items() if said}
    machine, environment = look_at_machine(), variables()
    return Report(
        device=device_type,
        architecture=devices.amd_architecture(),
        software=Software(software_versions(), imports(), environment, cards_and_tools()),
        chosen={name: _chosen(device_type, case) for name, case in CASES.items()},
        unusable=unusable,
        outcomes=[
            outcome
            for name in BACKENDS
            if tries and name not in unusable
            for outcome in _outcomes(name, torch_device)
        ],
        machine=machine,
        advice=advice(machine, environment, torch.version.hip),
        apart=_without_peer_access(),
        parity=parity_run(device_type) if tries and device_type != "cpu" else None,
    )


def _without_peer_access() -> list[tuple[int, int]]:
    count = torch.cuda.device_count()
    return [
        (one, other)
        for one in range(count)
        for other in range(count)
        if one != other and not torch.cuda.can_device_access_peer(one, other)
    ]


def _chosen(device_type: str, case: OpCase) -> dict[str, object]:
    lines = _Lines()
    logger = logging.getLogger(resolve_ops.__module__)
    level = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    try:
        return {"chosen": resolve_ops(device_type, case).chosen, "reasons": lines.said}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "reasons": lines.said}
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)


class _Lines(logging.Handler):
    """A handler that collects log messages."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def _outcomes(name: str, device: torch.device) -> list[Outcome]:
    backend = load_backend(name)
    architecture = devices.amd_architecture()
    # Other cards than AMD's have e4m3fn, as gfx950 has.
    card = architecture if architecture in ("gfx942", "gfx950") else "gfx950"
    found = []
    for exercise, (run, cards) in EXERCISES.items():
        if card in cards:
            work = partial(run, dict(backend.operations))
            found.append(_outcome(name, exercise, work, device))
    return found


def _outcome(backend: str, exercise: str, run: Callable[[], None], device: torch.device) -> Outcome:
    torch.manual_seed(0)
    try:
        with device, torch.inference_mode():
            run()
            started = time.perf_counter()
            for _ in range(_REPEATS if device.type == "cuda" else 1):
                run()
            if device.type == "cuda":
                torch.cuda.synchronize()
            repeats = _REPEATS if device.type == "cuda" else 1
            return Outcome(backend, exercise, None, (time.perf_counter() - started) / repeats * 1e6)
    except Exception as error:  # any failure of a kernel is a result
        return Outcome(backend, exercise, f"{type(error).__name__}: {error}"[:2000])


def summary(report: Report) -> str:
    """Summarise for people: a line for each exercise that failed, and the chosen backends."""
    versions = ", ".join(f"{name} {version}" for name, version in report.software.versions.items())
    lines = [f"{report.device} {report.architecture or ''}".strip(), versions]
    lines += report.machine.lines()
    lines += [f"device {one} cannot read device {other}'s memory" for one, other in report.apart]
    lines += [f"{name}: {said}" for name, said in report.software.imports.items()]
    for name, choice in report.chosen.items():
        lines.append(f"{name}: {_by_backend(choice)}")
        lines += [f"  {reason}" for reason in _listed(choice.get("reasons"))]
    lines += [f"{name}: {said}" for name, said in report.unusable.items()]
    for outcome in report.outcomes:
        said = outcome.error or f"passed, {outcome.microseconds:,.0f} µs"
        lines.append(f"{outcome.backend}, {outcome.exercise}: {said}")
    if report.outcomes:
        lines.append(f"{len(report.failed)} of {len(report.outcomes)} outcomes failed")
    lines += [str(report.parity)] if report.parity is not None else []
    lines += [f"advice: {said}" for said in report.advice]
    return "\n".join(lines)


def _by_backend(choice: dict[str, object]) -> str:
    chosen = choice.get("chosen")
    if not isinstance(chosen, dict):
        return str(choice.get("error"))
    backends = dict.fromkeys(chosen.values())
    return "; ".join(
        f"{backend} has {', '.join(op for op, other in chosen.items() if other == backend)}"
        for backend in backends
    )


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def write_bundle(report: Report, file: Path) -> None:
    """Write one archive to attach to an issue."""
    contents = {
        "report.json": json.dumps(asdict(report), indent=2),
        "summary.txt": summary(report),
        **{f"{name.split()[0]}.txt": said for name, said in report.software.tools.items()},
    }
    with tarfile.open(file, "w:gz") as archive:
        for name, text in contents.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"atom-report/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
