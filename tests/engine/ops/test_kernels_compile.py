"""Every kernel compiles for NVIDIA and for AMD cards, with neither present.

Shapes are real ones, bfloat16. What only a compiler finds — a loop-carried tile that changes its
shape, an instruction that one vendor lacks, too much shared memory — is found here.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from atom.model_ops.backends.batch_invariant import mla
from atom.model_ops.backends.triton_ops.attention import (
    mla_decode,
    mla_prefill,
    prefill,
    sparse_mla_decode,
)
from atom.model_ops.backends.triton_ops.linear_attention import chunked_delta_rule, state_space_dual
from atom.model_ops.backends.triton_ops.moe.grouped_kernel import sorted_gemm_kernel
from tests.engine.ops.batch_invariant_cases import CASES as BATCH_INVARIANT_CASES
from tests.engine.ops.expert_cases import BY_TMA
from tests.engine.ops.kernel_cases import (
    CASES,
    CHUNKS,
    DEALT_CASES,
    DELTA_RULE,
    ENTRIES,
    FP8_LATENT,
    SELECTED,
    SLOTS,
    SSD,
)

TARGETS = {
    "H200": (GPUTarget("cuda", 90, 32), 227 * 1024),
    "MI300X": (GPUTarget("hip", "gfx942", 64), 64 * 1024),
    "MI355X": (GPUTarget("hip", "gfx950", 64), 160 * 1024),
}
# The e4m3 that a card's tensor core takes.
FP8 = {"H200": "fp8e4nv", "MI300X": "fp8e4b8", "MI355X": "fp8e4nv"}
# Pointers by name; what is no pointer and no constant is an int32 unless named here.
TYPES = {
    "eps": "fp32", "scale": "fp32", "cos_sin_ptr": "*fp32", "positions_ptr": "*i64",
    "slots_ptr": "*i64", "tables_ptr": "*i32", "contexts_ptr": "*i32", "starts_ptr": "*i32",
    "parts_ptr": "*fp32", "partial_ptr": "*fp32",
    "lse_ptr": "*fp32", "temperature_ptr": "*fp32", "seed_ptr": "*i64",
    "position_ptr": "*i64", "best_ptr": "*fp32", "group_ptr": "*i32", "said_ptr": "*i32",
    "turn_ptr": "*i64", "answers_ptr": "*i32",
    "last_token_ptr": "*i64", "num_computed_ptr": "*i64", "ids_ptr": "*i64",
    "slot_mapping_ptr": "*i64", "row_tables_ptr": "*i32", "row_temperature_ptr": "*fp32",
    "row_seed_ptr": "*i64", "sample_positions_ptr": "*i64", "token_ids_ptr": "*i64",
    "rows_ptr": "*i64", "bits_ptr": "*i32", "top_k_ptr": "*i64", "top_p_ptr": "*fp32",
    "min_p_ptr": "*fp32", "mass_ptr": "*fp32", "highest_ptr": "*fp32", "chosen_ptr": "*i32",
    "least_ptr": "*fp32", "scales_ptr": "*fp32", "x_scale_ptr": "*fp32", "sinks_ptr": "*fp32",
    "own_ptr": "*i64", "kept_ptr": "*i32", "addresses_ptr": "*i64", "sums_ptr": "*i32",
    "weights_ptr": "*fp32", "order_ptr": "*i32", "counts_ptr": "*i32", "score_bias_ptr": "*fp32",
}  # fmt: skip
# Arguments that are several: of each the names of its own, by which cases speak of them.
TUPLES = {
    "cache": ("k_cache_ptr", "v_cache_ptr", "k_scale_ptr", "v_scale_ptr"),
    "rotary": ("q_weight_ptr", "k_weight_ptr", "cos_sin_ptr", "positions_ptr"),
    "parts": ("partial_ptr", "lse_ptr", "counts_ptr"),
    "left_parts": ("partial_ptr", "lse_ptr"),
    "activation": ("KIND", "ALPHA", "LIMIT"),
    "x": ("x_ptr", "x_scale_ptr"),
    "w": ("w_ptr", "scale_ptr", "zero_ptr", "inputs_ptr", "index_ptr", "bias_ptr"),
    "out": ("out_ptr", "out_scale_ptr"),
    "router": ("logits_ptr", "router_bias_ptr", "score_bias_ptr"),
    "experts": ("w_ptr", "scale_ptr", "bias_ptr"),
    "shared": ("shared_ptr", "shared_scale_ptr", "shared_bias_ptr"),
    "entries": ("cache_ptr", "key_cache_ptr", "entry_scale_ptr"),
}
# The pairs of experts, which a launch of sorted ones takes otherwise.
ROUTED = {True: ("weights_ptr", "order_ptr", "counts_ptr"), False: ("chosen_ptr", "weights_ptr")}
# Bytes of scratch per lane that an AMD card's compiler may spill registers to, by kernel: none, but
# for these, which hold more than its 512 registers (docs/results/amd-kernels.md has the figures).
SCRATCH_BYTES = {
    mla_decode._mla_decode_kernel: 1536,
    mla_prefill._mla_prefill_kernel: 2048,
    prefill._prefill_kernel: 768,
    mla._mla_kernel: 1344,
}
WAVE = 64  # lanes of a wavefront of these cards


def compiled(kernel: Any, constants: dict[str, Any], options: dict[str, Any], card: str) -> Any:
    target, _ = TARGETS[card]
    options = dict(options)
    if "DIES" in kernel.arg_names:
        constants = {"DIES": 1} | constants
    if "HIP" in kernel.arg_names:
        constants = {"HIP": card != "H200"} | constants
    own = {
        name: f"*{FP8[card]}" if kind == "fp8" else kind
        for name, kind in options.pop("types", {}).items()
    }
    # Pointers are aligned to 16 bytes, as torch's allocations are; sizes where a case says so.
    even = options.pop("even", ())
    tuples = TUPLES | {
        "routed": ROUTED["EXPERTS" in kernel.arg_names and "tokens" in kernel.arg_names]
    }
    signature: dict[str, Any] = {}
    constexprs, attributes, known = {}, {}, set(constants)
    for index, name in enumerate(kernel.arg_names):
        inner = tuples.get(name, (name,)) if name not in constants else (name,)
        several = len(inner) > 1
        kinds = []
        for place, part in enumerate(inner):
            path = (index, place) if several else (index,)
            usual = TYPES.get(part, "*bf16" if part.endswith("_ptr") else "i32")
            kinds.append("constexpr" if part in constants else own.get(part) or usual)
            if part in constants:
                constexprs[path] = constants[part]
                known.discard(part)
            if part.endswith("_ptr") or part in even:
                attributes[path] = [["tt.divisibility", 16]]
        signature[name] = tuple(kinds) if several else kinds[0]
    assert not known, f"{kernel.fn.__name__} has no parameters {sorted(known)}"
    source = ASTSource(kernel, signature, constexprs=constexprs, attrs=attributes)
    return triton.compile(source, target=target, options={"num_stages": 2, **options})


def isa_figure(binary: Any, name: str) -> int:
    """What the metadata of an AMD kernel's assembly says."""
    found = re.search(rf"\.{name}:\s+(\d+)", binary.asm["amdgcn"])
    assert found is not None, f"the assembly says no {name}"
    return int(found.group(1))


@pytest.mark.parametrize("card", TARGETS)
def test_codes_of_one_token_are_no_zeros(card: str) -> None:
    """They are multiplied as float32's smallest numbers, which a card may be told to flush."""
    (case,) = (case for case in CASES if case.id == "int4, one token")
    binary = compiled(*case.values, card)
    if card == "H200":
        assert ".ftz" not in binary.asm["ptx"]
    else:
        assert ".amdhsa_float_denorm_mode_32 3" in binary.asm["amdgcn"]


@pytest.mark.parametrize(("constants", "types"), BY_TMA, ids=["gates", "downs"])
def test_described_tiles_are_copied_by_the_engine(
    constants: dict[str, Any], types: dict[str, str]
) -> None:
    """The matrix', and the downs' activations as well."""
    read = {name: value for name, value in constants.items() if name not in types}
    binary = compiled(
        sorted_gemm_kernel, read, {"types": types, "num_warps": 8, "num_stages": 4}, "H200"
    )
    assert binary.metadata.shared <= TARGETS["H200"][1]
    copies = re.findall(r"cp\.async(?:\.bulk\.tensor)?", binary.asm["ptx"])
    assert "cp.async.bulk.tensor" in copies
    assert ("cp.async" in copies) == ("x_desc" not in types)


@pytest.mark.singles
@pytest.mark.parametrize("card", TARGETS)
@pytest.mark.parametrize(("kernel", "constants", "options"), CASES)
def test_kernel_compiles(
    kernel: Any, constants: dict[str, Any], options: dict[str, Any], card: str
) -> None:
    _check_compiled(kernel, constants, options, card)


# Adds of floats whose order is the hardware's.
FLOAT_ATOMICS = {
    "cuda": re.compile(r"\b(?:atom|red)\.\S*\.(?:f16|bf16|f32|f64|f16x2|bf16x2)\b"),
    "hip": re.compile(r"\b(?:global|flat|buffer|ds)_(?:atomic_)?(?:pk_)?add_\w*f\w+"),
}


@pytest.mark.singles
@pytest.mark.parametrize("card", TARGETS)
@pytest.mark.parametrize(("kernel", "constants", "options"), BATCH_INVARIANT_CASES)
def test_a_kernel_of_reproducible_answers_compiles_without_atomic_adds(
    kernel: Any, constants: dict[str, Any], options: dict[str, Any], card: str
) -> None:
    binary, backend = _check_compiled(kernel, constants, options, card), TARGETS[card][0].backend
    assert not FLOAT_ATOMICS[backend].search(binary.asm["ptx" if backend == "cuda" else "amdgcn"])


@pytest.mark.parametrize(
    ("backend", "line"),
    [
        ("cuda", "red.global.gpu.add.f32 [%rd1], %f2;"),
        ("cuda", "atom.global.add.noftz.bf16x2 %r1, [%rd1], %r2;"),
        ("hip", "global_atomic_add_f32 v[0:1], v2, off"),
        ("hip", "global_atomic_pk_add_bf16 v[0:1], v2, off"),
        ("hip", "ds_add_f32 v0, v1"),
    ],
)
def test_an_atomic_add_of_floats_is_seen(backend: str, line: str) -> None:
    assert FLOAT_ATOMICS[backend].search(line)


@pytest.mark.singles
@pytest.mark.parametrize("card", ["MI300X", "MI355X"])
@pytest.mark.parametrize(("kernel", "constants", "options"), DEALT_CASES)
def test_a_kernel_whose_tiles_are_dealt_out_compiles(
    kernel: Any, constants: dict[str, Any], options: dict[str, Any], card: str
) -> None:
    _check_compiled(kernel, constants, options, card)


def _check_compiled(
    kernel: Any, constants: dict[str, Any], options: dict[str, Any], card: str
) -> Any:
    binary = compiled(kernel, constants, options, card)
    assert binary.metadata.shared <= TARGETS[card][1]
    if TARGETS[card][0].backend == "hip":
        assert isa_figure(binary, "wavefront_size") == binary.metadata.warp_size == WAVE
        scratch = isa_figure(binary, "private_segment_fixed_size")
        assert scratch <= SCRATCH_BYTES.get(kernel, 0), "registers are spilled to memory"
    return binary


@pytest.mark.parametrize(
    ("kernel", "constants", "options"),
    [
        (sparse_mla_decode._sparse_mla_kernel, {**SELECTED, "IS_SPLIT": True}, SLOTS),
        (mla_decode._mla_decode_kernel, {**FP8_LATENT, "IS_SPLIT": True}, ENTRIES),
    ],
    ids=["selection", "fp8"],
)
@pytest.mark.parametrize(("heads", "block_n", "warps"), [(16, 32, 4), (64, 64, 8)])
def test_tiles_that_amd_would_spill_fit_an_h200(
    kernel: Any, constants: dict[str, Any], options: dict[str, Any], heads: int, block_n: int,
    warps: int,
) -> None:  # fmt: skip
    constants = {**constants, "HQ": 2 * heads, "HEADS": heads, "BLOCK_N": block_n}
    stages = 3 if heads == 16 else 2
    binary = compiled(
        kernel, constants, {"num_warps": warps, "num_stages": stages, **options}, "H200"
    )
    assert binary.metadata.shared <= TARGETS["H200"][1]


@pytest.mark.parametrize(
    ("kernel", "constants"),
    [
        (chunked_delta_rule._chunk_states_kernel, {**DELTA_RULE, "K_LANES": 128}),
        (state_space_dual._chunks_kernel, {**SSD, "DV": 64}),
    ],
)
def test_the_tile_of_chunks_that_amd_would_spill_lets_two_share_an_h200(
    kernel: Any, constants: dict[str, Any]
) -> None:
    constants = {**constants, "CHUNK": 64, "BLOCK_V": 64}
    binary = compiled(kernel, constants, {"num_warps": 4, "num_stages": 1, **CHUNKS}, "H200")
    assert 2 * binary.metadata.shared <= TARGETS["H200"][1]
