"""What the driver's topology says of devices, from its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from atom.utils.kfd_topology import dies_at, read_nodes

# Of an MI300X with all its dies, as its driver writes them; those that are read, and some others.
RECORDED = """cpu_cores_count 0
simd_count 1216
mem_banks_count 1
lds_size_in_kb 64
wave_front_size 64
array_count 32
simd_per_cu 4
gfx_target_version 90402
vendor_id 4098
device_id 29857
location_id 50176
domain 0
drm_render_minor 128
unique_id 14236938281957353486
num_xcc 8
max_engine_clk_fcompute 2100
"""
PLACE = (0, 0xC4, 0)  # 50176 is bus 0xc4, device 0, function 0


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    _write(tmp_path, 0, "cpu_cores_count 96\ngfx_target_version 0\nnum_xcc 0\n")
    return tmp_path


def _write(topology: Path, number: int, properties: str) -> None:
    (topology / str(number)).mkdir()
    (topology / str(number) / "properties").write_text(properties)


def test_a_whole_card_is_read(topology: Path) -> None:
    _write(topology, 1, RECORDED)
    (node,) = read_nodes(topology)
    assert (node.architecture, node.render_minor) == ("gfx942", 128)
    assert (node.place, node.dies) == (PLACE, 8)
    assert dies_at(PLACE, topology) == 8
    assert dies_at((0, 0xC5, 0), topology) is None


def test_partitions_share_a_place_and_have_fewer_dies(topology: Path) -> None:
    for number in (1, 2):
        place = 50176 | (number - 1) << 28 | number - 1  # the partition's number, and a function
        properties = RECORDED.replace("location_id 50176", f"location_id {place}")
        _write(topology, number, properties.replace("num_xcc 8", "num_xcc 4"))
    assert dies_at(PLACE, topology) == 4


@pytest.mark.parametrize(
    "properties",
    ["", RECORDED.replace("num_xcc 8\n", ""), RECORDED.replace("num_xcc 8", "num_xcc unknown")],
)
def test_a_driver_that_does_not_say_is_no_error(topology: Path, properties: str) -> None:
    _write(topology, 1, properties)
    assert dies_at(PLACE, topology) is None
