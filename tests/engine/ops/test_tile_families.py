"""Tiles of products by family: measured shapes keep theirs, all others get one that suits them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from atom.model_ops.backends.triton_ops.compile import tuning
from atom.model_ops.backends.triton_ops.compile.tuning import (
    TOKEN_BUCKETS,
    LinearConfig,
    SkinnyConfig,
    SplitKConfig,
)
from atom.model_ops.backends.triton_ops.gemm.cost_model import (
    Card,
    Product,
    fits,
    library_seconds,
    seconds,
    shared_bytes,
)
from atom.model_ops.backends.triton_ops.gemm.tile_families import (
    Point,
    family_config,
    measured_points,
)

TABLES = tuning.parse(json.loads(tuning.shipped_path("NVIDIA H200").read_text()))
assert TABLES.rates is not None
H200 = Card(units=132, shared_bytes=227 * 1024, rates=TABLES.rates)
KINDS = ("linear", "addend", "gated")
# hidden, inner of the MLP, outputs of qkv, inputs of o, vocabulary
MODELS = {
    "1.7b": (2048, 6144, 4096, 2048, 151936),
    "3b": (3072, 8192, 5120, 3072, 128256),
    "4b": (2560, 9728, 6144, 4096, 151936),
    "14b": (5120, 17408, 7168, 5120, 151936),
    "32b": (5120, 25600, 10240, 8192, 151936),
    "a half of 8b": (4096, 6144, 3072, 2048, 75968),
    "a half of 14b": (5120, 8704, 3584, 2560, 75968),
    "an eighth of 70b": (8192, 3584, 1280, 1024, 16032),
    "gpt-oss": (2880, 2880, 5120, 4096, 201088),
}


def points(kind: str, bucket: int) -> tuple[Point, ...]:
    return measured_points(getattr(TABLES, kind), bucket)


def products(model: str) -> Iterator[tuple[str, Product]]:
    """Kind and product, of every product of a layer and of the head that may have a tile."""
    hidden, inner, qkv, o, vocabulary = MODELS[model]
    for tokens in TOKEN_BUCKETS:
        for kind, outputs, inputs in (
            ("linear", qkv, hidden),
            ("addend", hidden, o),
            ("gated", 2 * inner, hidden),
            ("addend", hidden, inner),
            ("linear", vocabulary, hidden),
        ):
            # One token's sums are not left in parts.
            known = "linear" if kind == "addend" and tokens == 1 else kind
            yield known, Product(outputs, inputs, tokens, 2, gated=known == "gated")


def chosen(kind: str, product: Product, *, leaving_out: Point | None = None) -> LinearConfig | None:
    known = [point for point in points(kind, product.tokens) if point != leaving_out]
    return family_config(known, product, H200)


def measured() -> Iterator[tuple[str, Point, Product]]:
    for kind in KINDS:
        for bucket in TOKEN_BUCKETS:
            for point in points(kind, bucket):
                sizes = (point.outputs, point.inner, bucket)
                yield kind, point, Product(*sizes, 2, gated=kind == "gated")


def test_what_was_measured_stays_what_it_was() -> None:
    assert len(list(measured())) == sum(len(getattr(TABLES, kind)) for kind in KINDS) > 150
    for kind, point, product in measured():
        assert chosen(kind, product) == point.config


def test_the_family_foresees_a_shape_that_was_measured() -> None:
    """Without its own point a shape gets a tile about as good, as far as the model can tell."""
    worse = [
        (kind, product, own.config, found)
        for kind, own, product in measured()
        if own.config is not None and (found := chosen(kind, product, leaving_out=own)) is not None
        if seconds(found, product, H200) > 1.1 * seconds(own.config, product, H200)
    ]
    # Of 0.6B the gates have no neighbour but matrices sixteen times as large.
    assert {product.outputs for _, product, _, _ in worse} <= {1024, 6144}
    assert len(worse) <= 12


@pytest.mark.parametrize("model", MODELS)
def test_a_tile_of_a_shape_never_seen_divides_it_and_is_no_slower_than_the_library(
    model: str,
) -> None:
    own = 0
    for kind, product in products(model):
        config = chosen(kind, product)
        if config is None:
            continue
        own += 1
        assert fits(config, product, H200)
        assert seconds(config, product, H200) < library_seconds(product, H200)
        if isinstance(config, SplitKConfig):
            assert product.columns % config.block_n == 0
            assert product.inner % (config.block_k * config.split_k) == 0
    assert own >= 10, "most products of few tokens have a tile of their own"


@pytest.mark.parametrize("model", ["1.7b", "3b", "4b", "14b", "a half of 8b", "a half of 14b"])
def test_one_to_eight_tokens_read_the_matrix_at_nearly_the_cards_rate(model: str) -> None:
    """Three quarters of the time beyond what any launch costs, or the library."""
    for kind, product in products(model):
        config = chosen(kind, product)
        if product.tokens <= 8 and config is not None:
            size = product.outputs * product.inner * 2
            ideal = size / H200.rates.bytes_per_second
            reading = seconds(config, product, H200) - H200.rates.launch_seconds
            assert reading < ideal / 0.75 + H200.rates.latency_seconds


def test_programs_that_leave_multiprocessors_idle_cost_time() -> None:
    tile = SkinnyConfig("dot", 16, 128, 4, 4, 4)
    full, spilling = (
        seconds(tile, Product(16 * programs, 4096, 1, 2), H200) / programs
        for programs in (132 * 3, 132 * 3 + 1)
    )
    assert spilling > 1.1 * full, "a last program runs alone"


def test_a_tile_that_the_card_has_no_memory_for_is_not_taken() -> None:
    wide = SplitKConfig(64, 128, 2, True, 4, 5, 64)
    known = [Point(4096, 4096, wide)]
    small = Card(units=80, shared_bytes=64 * 1024, rates=H200.rates)
    near = Product(4096, 5120, 16, 2)
    assert family_config(known, near, H200) == wide
    assert family_config(known, near, small) is None
    single = Product(4096, 5120, 64, 4)  # float32
    assert family_config(known, single, H200) is None


def test_without_measurements_the_library_multiplies() -> None:
    assert family_config((), Product(4096, 4096, 8, 2), H200) is None


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="compiles nothing")
@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        (SkinnyConfig("dot", 16, 128, 4, 4, 4), 8),
        (SkinnyConfig("dot", 16, 256, 4, 4, 2), 8),
        (SplitKConfig(64, 128, 2, True, 4, 5, 64), 16),
        (SplitKConfig(64, 128, 2, True, 4, 5, 64), 64),
    ],
)
def test_the_model_counts_the_shared_memory_that_the_compiler_takes(
    config: LinearConfig, tokens: int
) -> None:
    from tests.engine.ops.compiled_products import compiled_product

    binary = compiled_product(config, tokens)
    assert shared_bytes(config, Product(4096, 4096, tokens, 2)) == binary.metadata.shared
