"""Spares Triton's interpreter what it does again at every call of a function, always the same.

It puts its own operations into `triton.language` at each launch, and once more at each call of a
function from a kernel; it makes a table of types wherever it needs one of them; and it computes
whole numbers a second time, with more bits, to see whether they overflow, which cases so small
cannot. Most of its time goes into types of tiles, of which a kernel has a few: each result of each
operation spells its own anew, and tuples of sizes get types that no operation reads. Two operands
of one type are asked for the type to compute in, and a number beside a tile is made a tensor, each
time. Floats of eight and sixteen bits are converted bit by bit, which a table does as well.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

_BITS_OF_TABLES = (8, 16)


def spare_repeated_work() -> None:
    """Before the first launch of a process that does nothing but interpret."""
    import triton.language as tl
    from triton.runtime import interpreter

    interpreter._patch_attr = _call_at_once(interpreter)
    everything: Any = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    interpreter._patch_lang(everything)
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()

    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)

    of_scalar = cache(interpreter._get_np_dtype)
    interpreter._get_np_dtype = lambda kind: of_scalar(
        tl.uint64 if kind.scalar.is_ptr() else kind.scalar
    )
    _type_tuples_when_asked(tl.core)
    _spell_types_once(tl.core)
    _compare_types_by_identity(tl.core)
    semantic = interpreter.interpreter_semantic
    semantic.computation_type_impl = cache(semantic.computation_type_impl)
    _leave_equal_shapes(semantic)
    _leave_equal_types(semantic, tl)
    _make_numbers_once(semantic)
    tl.core._unwrap_if_constexpr = _unwrap_others(tl.core)
    interpreter._convert_float = _convert_by_tables(interpreter._convert_float)


def _call_at_once(interpreter: Any) -> Any:
    """Call what a builtin wraps: the interpreter always gives what the wrapper asks for."""
    semantic = interpreter.interpreter_semantic

    def patch_attr(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        plain = getattr(member, "__wrapped__", member)

        def call(*args: Any, _semantic: Any = None, **kwargs: Any) -> Any:
            return plain(*args, **kwargs, _semantic=semantic)

        scope.set_attr(owner, name, call)

    return patch_attr


def _unwrap_others(core: Any) -> Any:
    """Unwrap what may be a constant or hold one, which a tensor does not."""
    unwrap, tensor = core._unwrap_if_constexpr, core.tensor
    return lambda value: value if value.__class__ is tensor else unwrap(value)


def _convert_by_tables(convert: Any) -> Any:
    """Convert each number of few bits once, by the interpreter's own conversion."""

    @cache
    def table(source: Any, target: Any, rounding: Any) -> Any:
        unsigned = np.dtype(f"uint{source.primitive_bitwidth}")
        numbers = np.arange(1 << source.primitive_bitwidth).astype(unsigned)
        return convert(numbers, source, target, rounding)

    def convert_float(numbers: Any, source: Any, target: Any, rounding: Any) -> Any:
        bits = source.primitive_bitwidth
        if bits not in _BITS_OF_TABLES:
            return convert(numbers, source, target, rounding)
        return table(source, target, rounding)[np.asarray(numbers).view(f"uint{bits}")]

    return convert_float


def _type_tuples_when_asked(core: Any) -> None:
    of_values = core._type_for_tuple_values

    def make(self: Any, args: Any, type: Any = None) -> None:
        self.values = list(args)
        if type is not None:
            self.type = type if isinstance(type, core.tuple_type) else core.tuple_type(type)

    found = cached_property[Any](lambda self: of_values(self.values))
    found.__set_name__(core.tuple, "type")
    core.tuple.__init__, core.tuple.type = make, found


def _spell_types_once(core: Any) -> None:
    spell, known = core.block_type.__init__, dict[Any, dict[str, Any]]()

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = shape.values if isinstance(shape, core.tuple) else shape
        space = getattr(element_ty, "address_space", None)  # of pointers, which a launch makes anew
        key = element_ty.name, space, *(getattr(size, "value", size) for size in sizes)
        if key not in known:
            spell(self, element_ty, shape)
            numel = core.constexpr(self.numel)
            self.of_tensor = core.tuple([core.constexpr(size) for size in self.shape]), numel
            known[key] = self.__dict__
        self.__dict__ = known[key]

    of_scalar = core.tuple([]), core.constexpr(1)

    def tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.of_tensor if type.is_block() else of_scalar

    with_element = core.block_type.with_element_ty

    def with_element_ty(self: Any, scalar: Any) -> Any:
        if scalar.is_ptr():  # which a launch makes anew
            return with_element(self, scalar)
        found = self.__dict__.setdefault("others", {})
        if scalar.name not in found:
            found[scalar.name] = with_element(self, scalar)
        return found[scalar.name]

    core.block_type.with_element_ty = with_element_ty
    core.block_type.__init__, core.tensor.__init__ = block_type, tensor


def _compare_types_by_identity(core: Any) -> None:
    for kind in (core.dtype, core.pointer_type, core.block_type):
        kind.__eq__ = _identical_or(kind.__eq__)


def _identical_or(equal: Any) -> Any:
    return lambda one, other: one is other or equal(one, other)


def _leave_equal_shapes(semantic: Any) -> None:
    broadcast = semantic.broadcast_impl_value

    def broadcast_impl_value(one: Any, other: Any) -> Any:
        left, right = one.type, other.type
        if left.is_block() and right.is_block() and left.shape.values == right.shape.values:
            return one, other
        return broadcast(one, other)

    semantic.broadcast_impl_value = broadcast_impl_value


def _leave_equal_types(semantic: Any, tl: Any) -> None:
    """Operands of one type are computed in it, but for quotients."""
    check, tensor = semantic.binary_op_type_checking_impl, tl.tensor

    def binary_op_type_checking_impl(
        one: Any, other: Any, left: bool = False, right: bool = False,
        arithmetic_check: bool = True, div_or_mod: bool = False,
    ) -> Any:  # fmt: skip
        same = one.__class__ is other.__class__ is tensor and one.dtype is other.dtype
        if same and not div_or_mod and not one.dtype.is_ptr():
            return semantic.broadcast_impl_value(one, other)
        return check(one, other, left, right, arithmetic_check, div_or_mod)

    semantic.binary_op_type_checking_impl = binary_op_type_checking_impl


def _make_numbers_once(semantic: Any) -> None:
    make, known = semantic.scalar_constant, dict[Any, Any]()

    def scalar_constant(value: Any, dtype: Any) -> Any:
        if value.__class__ not in (int, float) or not value:  # zeros have signs
            return make(value, dtype)
        key = value.__class__, value, dtype
        if key not in known:
            known[key] = made = make(value, dtype)
            made.handle.data.flags.writeable = False
        return known[key]

    semantic.scalar_constant = scalar_constant
