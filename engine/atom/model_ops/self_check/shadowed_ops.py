"""ShadowedOps: calls of a model's operations, each held against the reference on the same inputs.

While it watches, an operation's first call of a shape runs twice: the chosen kernel, whose result
the model goes on with, and the reference in wider numbers. What differs is kept as a `Difference`.
Matrices are those of the checkpoint: `keeping_originals` watches their preparation. Knows no steps;
the runner decides which ones run (model_engine/runner/self_check.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch

from atom.model_ops.backends import ResolvedOps, load_backend
from atom.model_ops.backends.composed import ComposedOps
from atom.model_ops.backends.interface import Ops
from atom.model_ops.backends.op_names import FUSED_OPS
from atom.model_ops.backends.pinned_ring import PinnedRing
from atom.model_ops.quantised.dequantise import multiply
from atom.model_ops.quantised.quantise import quantise
from atom.model_ops.self_check.agreement import (
    FP4_INPUT_ERROR,
    FP8_CACHE_ERROR,
    INPUT_ERROR,
    STATES_SLACK,
    TOLERANCE,
    bound_of,
    row_errors,
)
from atom.model_ops.self_check.argument_copies import (
    mapped,
    shape_of,
    weights_in,
    widened_weight,
)
from atom.model_ops.self_check.op_results import READERS, Results
from atom.model_ops.self_check.routing_ties import undecided_tokens
from atom.model_ops.values import EIGHT_BITS, FP4_FORMATS, LinearWeight, WeightFormat

_REFERENCE = "torch_ref"
# Their inputs are a product's own, computed within the call.
_NARROW = ("add_lora",)
# A sum of probabilities in another order may keep one token more, or fewer.
_TOKENS_AT_A_LIMIT = 1


@dataclass(frozen=True, slots=True)
class Difference:
    """A result that is not the reference's. shape: of the call's arguments; largest: the error of
    the worst row, or how many numbers of it differ; bound: that of the operation."""

    op: str
    backend: str
    shape: str
    result: str
    largest: float
    bound: float

    def __str__(self) -> str:
        return (
            f"{self.op} of backend {self.backend} on {self.shape}: {self.result} is off by "
            f"{self.largest:.1e}, bound {self.bound:.1e}"
        )


class ShadowedOps:
    """Operations under comparison. differences: found so far; held: operations that were compared,
    with the number of shapes; unheld: operations that ran and could not be, with the reason."""

    def __init__(
        self, resolved: ResolvedOps, dtype: torch.dtype, has_time: Callable[[], bool]
    ) -> None:
        """has_time: whether there is time for another comparison."""
        self._ops = resolved.ops
        self._backends = _backends_of(resolved)
        self._dtype = dtype
        self._has_time = has_time
        self._reference = _reference_ops(multiply)
        self._rounding = _reference_ops(_multiply_rounded)
        self._originals: dict[int, LinearWeight] = {}
        self._kept_shapes: set[str] = set()
        self._seen: set[tuple[str, str]] = set()
        self._undecided: set[tuple[str, str]] = set()
        self._shadows: dict[str, Callable[..., Any]] = {}
        self._is_inside = False
        self.differences: list[Difference] = []
        self.held: dict[str, int] = {}
        self.unheld: dict[str, str] = {}

    # ---- watching -----------------------------------------------------------------------------

    @contextmanager
    def keeping_originals(self, spaces: Sequence[Ops]) -> Iterator[None]:
        """Keep, within the context, the first matrix of each shape as it was before its
        preparation, if that changes it."""
        prepare = {
            op: partial(self._prepare, getattr(self._ops, op))
            for op in ("prepare_linear", "prepare_experts")
            if self._backends.get(op, _REFERENCE) != _REFERENCE
        }
        with _replaced(self._ops, spaces, prepare):
            yield

    @contextmanager
    def watching(self, spaces: Sequence[Ops]) -> Iterator[None]:
        """Hold the calls of operations within the context. spaces: the namespaces that layers call
        them by, which share the callables of the resolved one."""
        self._shadows = {
            op: partial(self._call, op, getattr(self._ops, op))
            for op in READERS
            if self._backends.get(op, _REFERENCE) != _REFERENCE
        }
        with _replaced(self._ops, spaces, self._shadows):
            yield
        self._originals.clear()
        for op, _ in self._undecided:
            self.unheld.setdefault(op, "a rounding decides the experts of each token")

    def _prepare(
        self, kernel: Callable[[LinearWeight], LinearWeight], w: LinearWeight
    ) -> LinearWeight:
        shape = shape_of(w)
        if shape in self._kept_shapes:
            return kernel(w)
        self._kept_shapes.add(shape)
        # On the host: the device has no room planned for a second copy.
        original = _copied_to(w, torch.device("cpu"))
        done = kernel(w)
        if done.scales is not w.scales or done.data.data_ptr() != w.data.data_ptr():
            self._originals[done.data.data_ptr()] = original
        return done

    def _original(self, w: LinearWeight) -> LinearWeight:
        """Return the reference's matrix of a prepared one."""
        kept = self._originals.get(w.data.data_ptr())
        if kept is None or kept.data.dim() != w.data.dim():
            return widened_weight(w)
        there = _copied_to(kept, w.data.device)
        return widened_weight(replace(there, gating=w.gating, lora=w.lora, ranks=w.ranks))

    # ---- one call -----------------------------------------------------------------------------

    def _call(self, op: str, kernel: Callable[..., Any], *args: Any, **named: Any) -> Any:
        args = (*args, *named.values())
        key = op, shape_of(args)
        skips = self._is_inside or key in self._seen
        if skips or any(isinstance(each, PinnedRing) for each in args):
            return kernel(*args)
        if not self._has_time():
            self.unheld.setdefault(op, "no time was left")
            return kernel(*args)
        self._seen.add(key)
        self._is_inside = True
        try:
            before, same = self._copies(op, args), self._same(op, args)
            out = kernel(*args)
            faults = len(self.differences)
            if before is not None:
                self._hold(key, before, (args, out))
            if len(self.differences) > faults and same is not None:
                self._is_inside = False
                self._hold_parts(op, same)
            return out
        finally:
            self._is_inside = False

    def _hold_parts(self, op: str, args: tuple[Any, ...]) -> None:
        """Compute a fused operation by those that it stands for, each of which is held: if a fault
        is theirs, it remains when the fused one is avoided."""
        parts = SimpleNamespace(**{**vars(self._ops), **self._shadows})
        getattr(ComposedOps(cast(Ops, parts)), op)(*args)

    def _same(self, op: str, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Copy a fused operation's arguments as they are; None if memory does not suffice."""
        if op not in FUSED_OPS:
            return None
        try:
            return cast(tuple[Any, ...], mapped(args, _unchanged, torch.Tensor.clone))
        except torch.cuda.OutOfMemoryError:
            return None

    def _copies(self, op: str, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...] | None:
        """Copy a call's arguments for the reference, and once more for one that rounds the inputs
        of products, if the kernel may; None if memory does not suffice."""
        weigh = _unchanged if op in _NARROW else self._original
        times = 2 if any(each.format in EIGHT_BITS for each in weights_in(args)) else 1
        try:
            return tuple(mapped(args, weigh) for _ in range(times))
        except torch.cuda.OutOfMemoryError:
            self.unheld[op] = "there was no memory for the reference"
            return None

    def _hold(
        self,
        key: tuple[str, str],
        copies: tuple[tuple[Any, ...], ...],
        call: tuple[tuple[Any, ...], Any],
    ) -> None:
        """Compute the reference's results, and compare those of the call (its arguments, and what
        it returned). key: of the call. If it has no token to compare, the next one is."""
        op, shape = key
        read = READERS[op]
        first, *again = copies
        try:
            undecided = undecided_tokens(op, first, TOLERANCE[self._dtype])
            if undecided is not None and undecided.all():
                self._seen.discard(key)
                self._undecided.add(key)
                return
            self._undecided.discard(key)
            wide = read(first, getattr(self._reference, op)(*first))
            rounded = [read(each, getattr(self._rounding, op)(*each)) for each in again]
        except Exception as error:  # of the reference: the kernel's result stands
            self.unheld[op] = _failure(error)
            return
        found = read(*call)
        self.held[op] = self.held.get(op, 0) + 1
        losses = tuple(_losses(call[0]))
        for name, expected, out in _pairs(wide, found):
            bound = bound_of(op, self._dtype, losses)
            if name in ("states", "tails"):
                bound = max(bound, TOLERANCE[torch.float32] * STATES_SLACK)
            spread = max((_spread(each.get(name), expected) for each in rounded), default=0.0)
            largest, bound = _largest(out, expected, max(bound, 2 * spread), undecided)
            bound = _TOKENS_AT_A_LIMIT if op == "filter_logits" and bound == 0 else bound
            if not largest <= bound:
                self.differences.append(
                    Difference(op, self._backends[op], shape, name, largest, bound)
                )


def _failure(error: Exception) -> str:
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "there was no memory for the reference"
    return f"the reference failed with {type(error).__name__}: {error}"


# ---- the reference ----------------------------------------------------------------------------


def _reference_ops(product: Callable[[torch.Tensor, LinearWeight], torch.Tensor]) -> Ops:
    """Return the reference's operations, fused ones composed, over a product."""
    operations = load_backend(_REFERENCE).operations
    ops = SimpleNamespace(**operations)
    ops.linear = product
    if product is not multiply:
        experts = operations["experts"]
        ops.experts = lambda x, w, routed: experts(_rounded(x, w.gate_up), w, routed)
    composed = ComposedOps(cast(Ops, ops))
    vars(ops).update({op: getattr(composed, op) for op in FUSED_OPS})
    return cast(Ops, ops)


def _multiply_rounded(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    return multiply(_rounded(x, w), w)


def _rounded(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """Round activations [T, in] to the element of a matrix of eight bits, by token."""
    if w.format not in EIGHT_BITS:
        return x
    kind = WeightFormat.INT8 if w.format is WeightFormat.INT8 else WeightFormat.FP8
    codes, scale = quantise(x, kind, (1, x.shape[-1]))
    return (codes.float() * scale).to(x.dtype)


def _unchanged(w: LinearWeight) -> LinearWeight:
    return w


def _copied_to(w: LinearWeight, device: torch.device) -> LinearWeight:
    """Copy a matrix to a device."""

    def copied(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.to(device, copy=True)

    scales = w.scales
    if scales is not None:
        groups = scales.groups
        if groups is not None:
            index, order = groups.index.to(device), copied(groups.order)
            groups = replace(groups, index=index, order=order)
        scales = replace(
            scales, scale=scales.scale.to(device), zero=copied(scales.zero), groups=groups
        )
    data = w.data.to(device, copy=True)
    return replace(w, data=data, bias=copied(w.bias), scales=scales, lora=None)


# ---- comparison -------------------------------------------------------------------------------


def _pairs(wide: Results, found: Results) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield the results by name, the reference's first. Streams that lack an addend on one side
    are compared as sums."""
    if ("addend" in wide) != ("addend" in found):
        wide, found = _settled(wide), _settled(found)
    for name, expected in wide.items():
        yield name, expected, found[name]


def _settled(stream: Results) -> Results:
    rest = {name: part for name, part in stream.items() if name != "addend"}
    addend = stream.get("addend")
    if addend is not None:
        rest["residual"] = rest["residual"] + addend
    return rest


def _largest(
    out: torch.Tensor, expected: torch.Tensor, bound: float, undecided: torch.Tensor | None
) -> tuple[float, float]:
    """Return how far the worst row is off, and the bound of that: of whole numbers, and of which
    logits are -inf, how many of the row's differ, and 0."""
    if out.shape != expected.shape:
        return float("inf"), bound
    if out.numel() == 0:
        return 0.0, bound
    if not out.is_floating_point():
        return float((out != expected).flatten(1 if out.dim() > 1 else 0).sum(-1).max()), 0.0
    masked, wanted = out.isneginf(), expected.isneginf()
    if masked.any() or wanted.any():
        apart = float((masked != wanted).flatten(1).sum(1).max())
        both = masked | wanted
        out, expected = out.masked_fill(both, 0.0), expected.masked_fill(both, 0.0)
        if apart > _TOKENS_AT_A_LIMIT:
            return apart, 0.0
    if not out.isfinite().all():
        return float("inf"), bound
    errors = row_errors(out.reshape(len(out), -1), expected.reshape(len(expected), -1))
    if undecided is not None and len(undecided) == len(errors):
        errors = errors[~undecided]
    return (float(errors.max()) if len(errors) else 0.0), bound


def _spread(rounded: torch.Tensor | None, expected: torch.Tensor) -> float:
    """Return how far the reference moves if it rounds the inputs of products."""
    if rounded is None or not expected.is_floating_point() or not expected.numel():
        return 0.0
    spread = row_errors(rounded.reshape(len(rounded), -1), expected.reshape(len(expected), -1))
    return float(spread.max())


def _losses(args: tuple[Any, ...]) -> Iterator[float]:
    """Yield the relative errors of rounding a call's inputs, or its cache."""
    for w in weights_in(args):
        yield INPUT_ERROR.get(w.format, 0.0)
        if w.format in FP4_FORMATS:
            has_fp4_inputs = w.scales is not None and w.scales.fp4_inputs
            yield FP4_INPUT_ERROR if has_fp4_inputs else 0.0
            # Experts with a clamped activation may round to e4m3.
            yield INPUT_ERROR[WeightFormat.FP8] if w.data.dim() == 3 else 0.0
    for each in args:
        stored = getattr(each, "k", getattr(each, "entries", None))
        if isinstance(stored, torch.Tensor) and stored.element_size() == 1:
            yield FP8_CACHE_ERROR


# ---- namespaces -------------------------------------------------------------------------------


def _backends_of(resolved: ResolvedOps) -> dict[str, str]:
    """Return the backend of each operation; of fused ones only those that are no compositions."""
    backends = dict(resolved.chosen)
    for op, parts in FUSED_OPS.items():
        kernel = getattr(resolved.ops, op, None)
        if kernel is not None and not isinstance(getattr(kernel, "__self__", None), ComposedOps):
            backends[op] = resolved.chosen[parts[0]]
    return backends


@contextmanager
def _replaced(
    resolved: Ops, spaces: Sequence[Ops], shadows: Mapping[str, Callable[..., Any]]
) -> Iterator[None]:
    """Put callables in the place of the resolved ones, in every namespace that has these."""
    own = {op: getattr(resolved, op) for op in shadows}
    changed = [
        (space, op, own[op])
        for space in spaces
        for op in shadows
        if getattr(space, op, None) is own[op]
    ]
    for space, op, _ in changed:
        setattr(space, op, shadows[op])
    try:
        yield
    finally:
        for space, op, kernel in changed:
            setattr(space, op, kernel)
