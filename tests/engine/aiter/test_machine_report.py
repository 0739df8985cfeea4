"""What the report says of a machine: drivers, who has a card's memory, links, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atom.self_test.machine import Machine, advice, look_at_machine
from atom.self_test.parity_run import CLOSE, PROMPTS, compare, parity_run
from atom.utils.amd_smi import CardFacts

FIRST, SECOND, THIRD = "0000:c4:00.0", "0000:c5:00.0", "0001:c6:00.0"
GIB = 1 << 30


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


def a_node(root: Path) -> Path:
    """Three cards: two behind XGMI, the third behind PCIe; two processes have memory."""
    nodes, processes = "sys/class/kfd/kfd/topology/nodes", "sys/class/kfd/kfd/proc"
    files = {f"{nodes}/0/properties": "cpu_cores_count 96\ngfx_target_version 0"}
    for number, (gpu_id, domain, bus) in enumerate(
        ((4711, 0, 0xC4), (4712, 0, 0xC5), (4713, 1, 0xC6)), start=1
    ):
        properties = f"gfx_target_version 90402\nlocation_id {bus << 8}\ndomain {domain}"
        files |= {f"{nodes}/{number}/properties": properties}
        files |= {f"{nodes}/{number}/gpu_id": str(gpu_id)}
        files |= {
            f"{nodes}/{number}/io_links/0/properties": f"type 2\nnode_from {number}\nnode_to 0"
        }
    files |= {
        f"{nodes}/1/io_links/1/properties": "type 11\nnode_from 1\nnode_to 2\nweight 15",
        f"{nodes}/2/io_links/1/properties": "type 11\nnode_from 2\nnode_to 1\nweight 15",
        f"{nodes}/1/p2p_links/0/properties": "type 2\nnode_from 1\nnode_to 3",
        f"{processes}/812/vram_4711": str(90 * GIB),
        f"{processes}/812/vram_4712": "0",
        f"{processes}/999/vram_4712": str(2 * GIB),
        f"{processes}/999/pasid": "32770",
        "proc/812/comm": "python3",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz password=hunter2 amd_iommu=on iommu=pt quiet",
        "proc/sys/kernel/numa_balancing": "1",
        "sys/module/amdgpu/version": "6.12.12",
        "opt/rocm/.info/version": "7.2.4-120",
    }
    write(root, files)
    return root


def test_memory_is_told_by_process_and_card(tmp_path: Path) -> None:
    said = "\n".join(look_at_machine(a_node(tmp_path)).lines())
    assert f"{FIRST}: 90.0 GiB by process 812 (python3)" in said
    assert f"{SECOND}: 2.0 GiB by process 999 (not of this container, or dead)" in said
    assert said.count("by process") == 2


def test_links_are_told_once_by_their_fastest_way(tmp_path: Path) -> None:
    links = look_at_machine(a_node(tmp_path)).links
    assert [(link.first, link.second, link.kind) for link in links] == [
        (FIRST, SECOND, "XGMI"),
        (FIRST, THIRD, "PCIe"),
    ]


def test_drivers_are_told_and_nothing_else_of_the_command_line(tmp_path: Path) -> None:
    drivers = look_at_machine(a_node(tmp_path)).drivers
    assert (drivers["amdgpu"], drivers["rocm"]) == ("6.12.12", "7.2.4-120")
    assert drivers["kernel command line"] == "amd_iommu=on iommu=pt"


def test_a_machine_without_cards_gets_no_advice(tmp_path: Path) -> None:
    write(tmp_path, {"proc/sys/kernel/numa_balancing": "1"})
    machine = look_at_machine(tmp_path)
    assert (machine.addresses, machine.holders, machine.links) == ((), (), ())
    assert advice(machine, {}, "7.2") == []


def found(tmp_path: Path, variables: dict[str, str], rocm: str | None = "7.2.4") -> list[str]:
    machine = look_at_machine(a_node(tmp_path))
    card = CardFacts(FIRST, "MI300X", None, None, None, total_bytes=192 * GIB, used_bytes=150 * GIB)
    told = Machine(machine.drivers, machine.addresses, (card,), machine.holders, machine.links)
    return advice(told, variables, rocm)


def test_memory_that_no_process_has_leads_to_the_remedy(tmp_path: Path) -> None:
    (said,) = [line for line in found(tmp_path, {}) if "no process has them" in line]
    assert said.startswith(f"60.0 GiB of {FIRST} are in use")
    assert "HSA_ENABLE_IPC_MODE_LEGACY=1" in said


@pytest.mark.parametrize(
    ("variables", "rocm", "told"),
    [
        ({}, "7.2.4", True),
        ({"HSA_ENABLE_IPC_MODE_LEGACY": "0"}, "7.0.0", True),
        ({"HSA_ENABLE_IPC_MODE_LEGACY": "1"}, "7.2.4", False),
        ({}, "6.4.1", False),
        ({}, None, True),  # then the machine's own, which is 7.2.4 here
    ],
)
def test_the_legacy_mode_is_asked_for_where_rocm_needs_it(
    tmp_path: Path, variables: dict[str, str], rocm: str | None, told: bool
) -> None:
    said = [line for line in found(tmp_path, variables, rocm) if line.startswith("set HSA_")]
    assert bool(said) is told


def test_settings_of_the_node_and_missing_links_are_told(tmp_path: Path) -> None:
    said = "\n".join(found(tmp_path, {}))
    assert "kernel.numa_balancing=0" in said
    assert f"no link between {SECOND} and {THIRD}" in said
    assert f"no link between {FIRST}" not in said
    assert "iommu=pt:" not in said
    (tmp_path / "proc/cmdline").write_text("quiet\n")
    said = "\n".join(advice(look_at_machine(tmp_path), {}, "7.2.4"))
    assert "boot the node with iommu=pt" in said


def there(value: float, best: float | None = None) -> Any:
    return SimpleNamespace(logprob=value, top_logprobs=((7, value if best is None else best),))


def answers(theirs: list[float], ours: list[Any]) -> tuple[list[Any], list[Any]]:
    item = {"token_ids": [7] * len(theirs), "logprobs": [there(value) for value in theirs]}
    return [item], [{"prompt_logprobs": [None, there(-1.0), *ours]}]


def test_parity_is_the_distance_of_the_same_tokens() -> None:
    near = compare(*answers([-1.0, -2.0], [there(-1.0), there(-2.0 - CLOSE / 2)]))
    assert (near.tokens, near.passed) == (2, True)
    assert "as on the CPU" in str(near)
    far = compare(*answers([-1.0, -2.0], [there(-1.0), there(-2.0 - 2 * CLOSE)]))
    assert not far.passed
    assert "NOT as on the CPU" in str(far)


def test_another_token_than_the_cpus_is_no_fault_where_both_are_as_likely() -> None:
    tie = compare(*answers([-1.0], [there(-1.0, best=-1.0 + CLOSE / 2)]))
    assert tie.passed
    wrong = compare(*answers([-1.0], [there(-1.0, best=-0.2)]))
    assert not wrong.passed


def test_an_engine_that_does_not_start_is_what_the_parity_run_tells() -> None:
    def answer(*_: Any) -> Any:
        raise RuntimeError("HIP error: invalid device function")

    run = parity_run("rocm", answer)
    assert not run.passed
    assert "RuntimeError: HIP error: invalid device function" in str(run)


@pytest.mark.slow
def test_the_cpu_is_at_parity_with_itself() -> None:
    """Two engines of their own processes, and the model as it is written."""
    run = parity_run("cpu")
    assert run.error is None
    assert run.tokens == 24 * len(PROMPTS)
    assert run.furthest < 1e-3
    assert run.passed
