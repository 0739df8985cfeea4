"""Spares Triton's interpreter what it does again at every call of a function, always the same.

It puts its own operations into `triton.language` at each launch, and once more at each call of a
function from a kernel; it makes a table of types wherever it needs one of them; and it computes
whole numbers a second time, with more bits, to see whether they overflow, which cases so small
cannot. Most of its time goes into types of tiles, of which a kernel has a few: each result of each
operation spells its own anew, and tuples of sizes get types that no operation reads.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any


def spare_repeated_work() -> None:
    """Before the first launch of a process that does nothing but interpret."""
    import triton.language as tl
    from triton.runtime import interpreter

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
