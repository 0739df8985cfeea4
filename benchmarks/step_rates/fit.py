"""Fit rates to steps: shares of the peaks by operation and rows, and seconds beside operations.

The time of a step is linear in one over each share, at points of rows between which it changes with
their logarithm. Relative errors are squared and summed, neighbouring points are drawn towards each
other, and no term is negative. The error of a table is that of each shape's steps, predicted by a
fit without that shape. Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from atom.advisor.operations import HostWork, ModelWork, Operation
from atom.advisor.rates import ASSUMED, Curve, Evidence, Rates, StepError, StepSeconds
from atom.advisor.step_shape import StepShape
from atom.advisor.step_time import StepTimer, ideal_seconds
from atom.sizing.cards import Card, Vendor

_POINTS: Mapping[Operation, tuple[float, ...]] = {
    Operation.MATRICES: (1, 16, 64, 256, 1024, 4096, 16384),
    Operation.PACKED: (1, 16, 64, 256),
    Operation.UNPACKING: (1,),
    Operation.QUANTISING: (64, 1024, 8192),
    Operation.EXPERTS: (1, 4, 16, 64, 256),
    Operation.HEAD: (1, 16, 64, 256),
    Operation.DECODE_ATTENTION: (1, 8, 64, 256),
    Operation.PROMPT_ATTENTION: (64, 512, 2048, 8192),
    Operation.STATES: (1, 64, 1024),
    Operation.COLLECTIVES: (1, 64, 1024),
}
_FIXED = ("step", "layer", "row", "prompt", "prepare")
_SMOOTHNESS, _PRIOR, _ROUNDS = 0.05, 0.02, 2000
# Of seconds beside operations, which few prompts would otherwise take for their products.
_FIXED_PRIOR = 0.006
# The largest share: of published peaks all; of a CPU's measured memory, caches are faster.
_MOST_SHARE = {Vendor.CPU: 20.0}
# Of operations.HostWork, in its order.
_LAUNCHES = ("launch", "launch_experts", "launch_quantised", "launch_sum", "launch_mixed")
_REWEIGHTED, _NEAR = 40, 0.01
_LEAST_SHAPES = 3
_HOST_SHARE = 0.9  # of a step's seconds from which they are the host's


@dataclass(frozen=True, slots=True, eq=False)
class TimedStep:
    """A step of a model, by the name of its shape, and the seconds that it took. host_seconds: to
    launch it op by op on a GPU; 0 if it was not; prepared: whether the seconds include those in
    which the host made the inputs of its prompts, since the device had nothing else to do."""

    name: str
    work: ModelWork
    shape: StepShape
    seconds: float
    host_seconds: float = 0.0
    prepared: bool = False

    @property
    def is_of_host(self) -> bool:
        """Return whether the host took nearly all of the step's seconds to launch it."""
        return self.host_seconds > _HOST_SHARE * self.seconds

    @property
    def host_work(self) -> HostWork:
        work = self.work.launches
        return work.beside_answers() if len(self.shape.contexts) else work


@dataclass(frozen=True, slots=True)
class Fitted:
    """Shares by operation, seconds beside them, and the error of shapes that a fit has not seen."""

    shares: dict[Operation, tuple[tuple[float, float], ...]]
    seconds: StepSeconds
    error: StepError

    def rates(self) -> Rates:
        """Return the rates as the advisor uses them."""
        return _rates(self.shares, self.seconds)


def fit(steps: Sequence[TimedStep], card: Card) -> Fitted:
    """Fit all steps; those that took as long as their host launched them say nothing of the device.
    Raises ValueError for fewer than three shapes, which give no error."""
    launched = [step for step in steps if step.host_seconds]
    steps = [step for step in steps if not step.is_of_host]
    names = sorted({step.name for step in steps})
    if len(names) < _LEAST_SHAPES:
        raise ValueError(f"{len(names)} shapes are too few for an error; measure 3 or more")
    errors: list[float] = []
    for name in names:
        known = [step for step in steps if step.name != name]
        errors += relative_errors(
            (step for step in steps if step.name == name), card, _rates(*_solve(known, card))
        )
    shares, seconds = _solve(steps, card)
    if launched:
        seconds = msgspec.structs.replace(seconds, **_launches(launched, seconds.prepare))
    error = StepError(float(np.median(errors)), float(np.percentile(errors, 90)))
    return Fitted(shares, seconds, error)


def _launches(steps: Sequence[TimedStep], prepare: float) -> dict[str, float]:
    """Return the seconds of a host for each layer, layer with experts, quantised product, sum and
    layer of prompts beside answers, by the least sum of relative errors: a host that was once busy
    with something else counts little. Kinds that no step has are as much slower or faster than
    assumed as the layers."""
    counts = np.array([dataclasses.astuple(step.host_work) for step in steps], dtype=float)
    wanted = np.array([max(1e-9, step.host_seconds - prepare) for step in steps])
    seen = counts.any(axis=0)
    rows, weights = counts[:, seen] / wanted[:, None], np.ones(len(steps))
    for _ in range(_REWEIGHTED):
        scaled = np.sqrt(weights)
        found = _bounded_least_squares(rows * scaled[:, None], scaled, np.zeros(rows.shape[1]))
        weights = 1.0 / np.maximum(np.abs(rows @ found - 1.0), _NEAR)
    values = np.array([getattr(ASSUMED.seconds, name) for name in _LAUNCHES])
    values *= found[0] / values[0]
    values[seen] = found
    return dict(zip(_LAUNCHES, values.tolist(), strict=True))


def relative_errors(steps: Iterable[TimedStep], card: Card, rates: Rates) -> list[float]:
    """Return how far predictions are from the steps, as shares of their seconds."""
    prepare = rates.seconds.prepare
    return [
        abs(
            (StepTimer(step.work, card, rates).seconds(step.shape) + prepare * step.prepared)
            / step.seconds
            - 1
        )
        for step in steps
    ]


def _rates(
    shares: Mapping[Operation, tuple[tuple[float, float], ...]], seconds: StepSeconds
) -> Rates:
    curves = {operation: Curve(points) for operation, points in shares.items()}
    return Rates({**ASSUMED.shares, **curves}, seconds, 0.0, Evidence.MEASURED)


def _solve(
    steps: Sequence[TimedStep], card: Card
) -> tuple[dict[Operation, tuple[tuple[float, float], ...]], StepSeconds]:
    columns = _columns(steps)
    rows = np.array([_features(step, card, columns) for step in steps])
    rows /= np.array([step.seconds for step in steps])[:, None]
    pull, prior, assumed = _smoothing(columns, rows), *_prior(columns, rows)
    if card.vendor is not Vendor.CPU:
        _add_prior_seconds(columns, len(rows), prior, assumed)
    matrix = np.concatenate([rows, pull, prior])
    wanted = np.concatenate([np.ones(len(steps)), np.zeros(len(pull)), assumed])
    fastest = 1.0 / _MOST_SHARE.get(card.vendor, 1.0)
    least = np.array([fastest if isinstance(name, Operation) else 0.0 for name, _ in columns])
    found = _bounded_least_squares(matrix, wanted, least)
    shares: dict[Operation, tuple[tuple[float, float], ...]] = {}
    fixed: dict[str, float] = {}
    for (name, width), value in zip(columns, found.tolist(), strict=True):
        if isinstance(name, Operation):
            shares[name] = (*shares.get(name, ()), (width, 1.0 / value))
        else:
            fixed[name] = value
    return shares, StepSeconds(**fixed)


Column = tuple[Operation | str, float]


def _columns(steps: Sequence[TimedStep]) -> list[Column]:
    """List the unknowns: each operation at the points that its rows reach, and fixed seconds."""
    widths: dict[Operation, list[float]] = {}
    for step in steps:
        for work in step.work.of_step(step.shape):
            widths.setdefault(work.operation, []).append(work.width)
    columns: list[Column] = []
    for operation in Operation:
        if operation in widths:
            least, most = min(widths[operation]), max(widths[operation])
            points = [each for each in _POINTS[operation] if least / 2 <= each <= most * 2]
            columns += [(operation, each) for each in points or [_POINTS[operation][0]]]
    fixed = [name for name in _FIXED if name != "prepare" or any(each.prepared for each in steps)]
    return columns + [(name, 0.0) for name in fixed]


def _features(step: TimedStep, card: Card, columns: Sequence[Column]) -> list[float]:
    """Return the factor of each unknown in the step's seconds."""
    values = dict.fromkeys(columns, 0.0)
    for work in step.work.of_step(step.shape):
        points = [width for name, width in columns if name is work.operation]
        ideal = ideal_seconds(work, card)
        for width, part in _parts(points, work.width):
            values[work.operation, width] += ideal * part
    shape = step.shape
    counts = (1, step.work.layers, len(shape.contexts), len(shape.chunks), step.prepared)
    for name, count in zip(_FIXED, counts, strict=True):
        if (name, 0.0) in values:
            values[name, 0.0] = float(count)
    return list(values.values())


def _parts(points: Sequence[float], width: float) -> list[tuple[float, float]]:
    """Divide one over the points around a width, by logarithms, as Curve reads them."""
    if width <= points[0]:
        return [(points[0], 1.0)]
    for before, after in itertools.pairwise(points):
        if width <= after:
            part = math.log(width / before) / math.log(after / before)
            return [(before, 1.0 - part), (after, part)]
    return [(points[-1], 1.0)]


def _smoothing(columns: Sequence[Column], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return equations by which neighbouring points are alike, as heavy as the points' part of the
    steps."""
    found = []
    for at, (one, other) in enumerate(itertools.pairwise(columns)):
        if one[0] is other[0] and isinstance(one[0], Operation):
            equation = np.zeros(len(columns))
            weight = _SMOOTHNESS * math.sqrt(len(rows)) * float(rows[:, at : at + 2].max())
            equation[at], equation[at + 1] = weight, -weight
            found.append(equation)
    return np.array(found).reshape(-1, len(columns))


def _prior(
    columns: Sequence[Column], rows: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return light equations by which a share that no step decides is the assumed one."""
    matrix, wanted = np.zeros((len(columns), len(columns))), np.zeros(len(columns))
    for at, (name, width) in enumerate(columns):
        if isinstance(name, Operation):
            weight = _PRIOR * math.sqrt(len(rows)) * float(rows[:, at].max())
            matrix[at, at], wanted[at] = weight, weight / ASSUMED.share(name, width)
    return matrix, wanted


def _add_prior_seconds(
    columns: Sequence[Column],
    steps: int,
    matrix: NDArray[np.float64],
    wanted: NDArray[np.float64],
) -> None:
    """Let seconds beside operations be near the assumed ones of a GPU where steps do not decide."""
    for at, (name, _) in enumerate(columns):
        if not isinstance(name, Operation):
            weight = _FIXED_PRIOR * math.sqrt(steps)
            matrix[at, at] = weight / getattr(ASSUMED.seconds, name)
            wanted[at] = weight


def _bounded_least_squares(
    matrix: NDArray[np.float64], wanted: NDArray[np.float64], least: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Minimise the squared error with each unknown at or above its least value, by coordinates."""
    scale = np.sqrt((matrix**2).sum(axis=0))
    scale[scale == 0] = 1.0
    normed = matrix / scale
    gram, target, bound = normed.T @ normed, normed.T @ wanted, least * scale
    found = np.maximum(bound, 0.0)
    for _ in range(_ROUNDS):
        before = found.copy()
        for at in range(len(found)):
            residual = target[at] - gram[at] @ found + gram[at, at] * found[at]
            found[at] = max(bound[at], residual / max(gram[at, at], 1e-12))
        if float(np.abs(found - before).max()) < 1e-9:
            break
    solution: NDArray[np.float64] = found / scale
    return solution
