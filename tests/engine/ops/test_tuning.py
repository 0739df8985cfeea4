"""Which configuration runs: shipped tables, what was measured here, and safe defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

import torch

from atom.model_ops.backends.triton_ops import tune
from atom.model_ops.backends.triton_ops.attention.split_kv import choose_splits
from atom.model_ops.backends.triton_ops.attention.verify_decode import (
    VerifyTile,
    choose_verify_tile,
    fewest_runs,
)
from atom.model_ops.backends.triton_ops.compile import tuning
from atom.model_ops.backends.triton_ops.compile.tuning import (
    DecodeConfig,
    SkinnyConfig,
    SplitKConfig,
)
from atom.model_ops.backends.triton_ops.gemm import choose
from atom.model_ops.values import LinearWeight

SHIPPED = sorted(tuning.shipped_path("x").parent.glob("*.json"))
CPU = torch.device("cpu")


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_table_names_its_card_and_has_possible_configurations(path: Path) -> None:
    raw = json.loads(path.read_text())
    assert tuning.shipped_path(raw["device"]) == path
    tables = tuning.parse(raw)
    for key, config in tables.linear.items():
        inner = int(key.split(":")[1].split("x")[1])
        if isinstance(config, SplitKConfig):
            assert config.split_k == 1
            assert_fits(config, key)
        elif config is not None:
            assert config.kernel in ("gemv", "dot")
            sizes = (config.block_n, config.block_k, config.split_k, config.num_warps)
            assert all(map(is_power_of_two, sizes))
            assert inner % (config.block_k * config.split_k) == 0
    for key, config in tables.addend.items():
        if config is not None:
            assert_fits(config, key)
    for key, config in tables.gated.items():
        if config is not None:
            assert config.split_k == 1
            assert_fits(config, key)
    for tile in (*tables.decode.values(), *tables.prefill.values()):
        assert is_power_of_two(tile.block_n)
        assert tile.block_n >= 16, "the tensor core's smallest tile"


def assert_fits(config: SplitKConfig, key: str) -> None:
    outputs, inner = map(int, key.split(":")[1].split("x"))
    assert outputs % config.block_n == 0
    assert inner % (config.block_k * config.split_k) == 0


def test_there_is_a_shipped_table() -> None:
    assert SHIPPED


def test_without_the_package_of_tables_defaults_serve_and_tuning_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An image leaves the package out."""
    card = json.loads(SHIPPED[0].read_text())["device"]
    monkeypatch.setenv("ATOM_CACHE_DIR", str(tmp_path))
    assert tuning.read_tables(card).linear
    monkeypatch.setattr(tuning, "_MEASUREMENTS", "atom_nvidia_left_out")
    assert tuning.read_tables(card) == tuning.Tables({}, {}, {}, {}, {})
    assert tune.main() == 1
    assert "run the command from the wheel" in capsys.readouterr().err


def test_what_was_measured_here_overrides_what_is_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOM_CACHE_DIR", str(tmp_path))
    card = json.loads(SHIPPED[0].read_text())["device"]
    shipped = tuning.read_tables(card)
    key, other = list(shipped.linear)[:2]
    mine = {"kernel": "gemv", "block_n": 2, "block_k": 64, "split_k": 1}
    path = tuning.cached_path(card)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"linear": {key: {**mine, "num_warps": 1, "num_stages": 1}}}))
    merged = tuning.read_tables(card)
    assert merged.linear[key] == SkinnyConfig("gemv", 2, 64, 1, 1, 1)
    assert merged.linear[other] == shipped.linear[other]


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATOM_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    path = tuning.cached_path("AMD Instinct MI300X")
    assert path.is_relative_to("/somewhere/atom")
    assert "amd_instinct_mi300x" in path.name
    assert tuning.source_hash() in path.name


def test_a_shipped_table_has_a_tile_for_every_size_of_a_batch() -> None:
    for path in SHIPPED:
        decode = tuning.parse(json.loads(path.read_text())).decode
        for head_dim in (64, 128):
            assert {tuning.decode_key(head_dim, 2, rows) for rows in range(1, 600)} <= set(decode)


def test_batches_of_decodes_are_told_apart_by_their_rows() -> None:
    keys = [tuning.decode_key(128, 2, rows) for rows in (1, 47, 48, 128, 129, 192, 193, 1000)]
    sizes = [key.removeprefix("128x2:") for key in keys]
    assert sizes == ["few", "few", "some", "some", "many", "many", "most", "most"]


def test_an_unknown_shape_is_the_librarys() -> None:
    w = LinearWeight(torch.empty(123, 456, dtype=torch.bfloat16))
    assert choose.linear_config(CPU, w, 1) is None
    assert choose.linear_config(CPU, w, 10_000) is None


@pytest.fixture
def some_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A GPU that was not measured, of 132 multiprocessors."""
    monkeypatch.setattr(tuning.torch.cuda, "get_device_name", lambda device: "NVIDIA Other")
    monkeypatch.setattr(choose, "compute_units", lambda device: 132)
    monkeypatch.setattr(choose, "shared_bytes", lambda device: 227 * 1024)
    yield torch.device("cuda", 7)
    for remembered in ("_chosen", "_points", "_known", "_card"):
        getattr(choose, remembered).cache_clear()
    tuning.tables.cache_clear()


def test_a_card_that_was_not_measured_borrows_from_one_of_its_vendor(
    some_card: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = LinearWeight(torch.empty(4096, 6144, dtype=torch.bfloat16))
    known = tuning.read_tables("NVIDIA H200")
    ours = choose.addend_config(some_card, w, 8)
    assert ours in known.addend.values()
    assert choose.addend_config(some_card, w, 5) == ours, "a bucket has one tile"
    assert choose.linear_config(some_card, w, 1) is not None
    assert choose.linear_config(some_card, w, 257) is None


def test_a_card_of_another_vendor_multiplies_by_the_library(
    some_card: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        w = LinearWeight(torch.empty(4096, 4096, dtype=dtype))
        assert choose.linear_config(some_card, w, 1) is None
        assert choose.addend_config(some_card, w, 8) is None


def test_token_counts_share_the_next_larger_bucket() -> None:
    keys = [tuning.linear_key(torch.bfloat16, 8, 16, tokens) for tokens in (3, 4, 5, 16)]
    assert keys == ["bfloat16:8x16:4", "bfloat16:8x16:4", "bfloat16:8x16:8", "bfloat16:8x16:16"]


@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("head_dim", [16, 64, 128, 256])
def test_default_attention_tiles_fit_64_kib_of_shared_memory(
    head_dim: int, element_bytes: int
) -> None:
    """An MI300X's compute unit has that much."""
    decode = tuning.decode_config(CPU, head_dim, element_bytes, 1)
    prefill = tuning.prefill_config(CPU, head_dim, element_bytes)
    token_bytes = head_dim * element_bytes
    # AMD's compiler keeps one tile less than its stages in shared memory; keys and values each.
    for tile in (decode, prefill):
        assert 2 * (tile.num_stages - 1) * tile.block_n * token_bytes <= 64 * 1024


CONFIG = DecodeConfig(64, 4, 2, programs_per_unit=8, max_splits=64)


def test_few_rows_are_split_until_the_card_is_busy() -> None:
    for rows in (1, 2, 8, 16):
        for even in (False, True):
            splits = choose_splits(rows, 8, 8192, 132, CONFIG, even=even)
            assert is_power_of_two(splits.count)
            programs = rows * 8 * splits.count
            assert programs >= 132 * 4 or splits.count == CONFIG.max_splits


def test_rows_that_fill_the_card_are_split_only_where_one_may_outlast_the_rest() -> None:
    for rows in (64, 256):
        assert choose_splits(rows, 8, 8192, 132, CONFIG, even=True).count == 1
        uneven = choose_splits(rows, 8, 8192, 132, CONFIG, even=False)
        assert uneven.count > 1
        assert uneven.least == 1024, "rows of usual length stay whole"


@pytest.mark.parametrize("group", [1, 2, 4, 5, 7, 8, 12, 16, 40, 128])
@pytest.mark.parametrize("lanes", [16, 64, 128, 256])
def test_a_run_is_one_tile_as_far_as_its_sums_stay_in_registers(group: int, lanes: int) -> None:
    for longest in range(1, 18):
        tile = choose_verify_tile(group, longest, lanes)
        assert is_power_of_two(tile.rows)
        assert tile.rows >= 16, "the tensor core's smallest tile"
        assert tile.places * group <= tile.rows
        assert (tile.chunks - 1) * tile.places < longest <= tile.chunks * tile.places
        assert tile.rows * lanes <= 8192 or tile.places == 1
        if group * longest <= min(64, 8192 // lanes):
            assert tile.chunks == 1
        warps = tile.warps(CONFIG, lanes, fp8=False)
        assert 16 * warps >= tile.rows
        assert 2048 * warps >= tile.rows * lanes


def test_tiles_of_a_model_that_drafts() -> None:
    assert choose_verify_tile(4, 4, 128) == VerifyTile(16, 4, 1)
    assert choose_verify_tile(4, 6, 128) == VerifyTile(32, 6, 1)
    assert choose_verify_tile(4, 17, 128) == VerifyTile(64, 9, 2)
    assert choose_verify_tile(8, 6, 256) == VerifyTile(32, 3, 2)
    assert VerifyTile(16, 4, 1).warps(DecodeConfig(32, 1, 3), 128, fp8=False) == 2
    assert VerifyTile(32, 6, 1).warps(CONFIG, 128, fp8=False) == 2, "four on H200: 107 µs, not 87"
    assert VerifyTile(32, 6, 1).warps(CONFIG, 128, fp8=True) == CONFIG.num_warps


def test_runs_are_split_as_if_there_were_as_few_as_may_be() -> None:
    assert fewest_runs(6, 6, 6) == 1
    assert fewest_runs(64, 64, 6) == 11
    assert fewest_runs(512, 64, 6) == 64, "of no more runs than there may be"
    assert fewest_runs(0, 0, 6) == 1


def test_no_split_is_shorter_than_a_tile() -> None:
    assert choose_splits(1, 8, 200, 132, CONFIG, even=False).count == 4
