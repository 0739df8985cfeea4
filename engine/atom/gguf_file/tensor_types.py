"""The types of tensors that a GGUF file may hold, and which of them the engine reads.

Numbers and block sizes are those of ggml; a test compares them with the `gguf` package, which takes
seconds to import and is needed for the weights alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor type: `block_elements` elements of a row share a block of `block_bytes` bytes; read:
    whether this engine reads it."""

    name: str
    block_elements: int
    block_bytes: int
    read: bool = True


def _other(name: str, block_elements: int, block_bytes: int) -> TensorType:
    return TensorType(name, block_elements, block_bytes, read=False)


_K = 256  # elements of a super-block
TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: _other("Q8_1", 32, 40),
    10: TensorType("Q2_K", _K, 84),
    11: TensorType("Q3_K", _K, 110),
    12: TensorType("Q4_K", _K, 144),
    13: TensorType("Q5_K", _K, 176),
    14: TensorType("Q6_K", _K, 210),
    15: _other("Q8_K", _K, 292),
    16: _other("IQ2_XXS", _K, 66),
    17: _other("IQ2_XS", _K, 74),
    18: _other("IQ3_XXS", _K, 98),
    19: _other("IQ1_S", _K, 50),
    20: _other("IQ4_NL", 32, 18),
    21: _other("IQ3_S", _K, 110),
    22: _other("IQ2_S", _K, 82),
    23: _other("IQ4_XS", _K, 136),
    24: _other("I8", 1, 1),
    25: _other("I16", 1, 2),
    26: _other("I32", 1, 4),
    27: _other("I64", 1, 8),
    28: _other("F64", 1, 8),
    29: _other("IQ1_M", _K, 56),
    30: TensorType("BF16", 1, 2),
    34: _other("TQ1_0", _K, 54),
    35: _other("TQ2_0", _K, 66),
    39: _other("MXFP4", 32, 17),
    40: _other("NVFP4", 64, 36),
    41: _other("Q1_0", 128, 18),
}
READ_TYPES = tuple(kind.name for kind in TENSOR_TYPES.values() if kind.read)
