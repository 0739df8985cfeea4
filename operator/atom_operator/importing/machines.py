"""The devices and the memory of imported containers, as fields of a spec. Pure.

A count of devices decides nothing in other projects without the flags of parallelism; here the
parallelism decides the count. Both are compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from atom_operator.importing.results import (
    Finding,
    Machine,
    Result,
    Setting,
    changed,
    left,
    unneeded,
)

AMD_GPU = "amd.com/gpu"  # the resource of AMD's device plugin


def settled(results: Sequence[Result]) -> tuple[list[Setting], list[Finding]]:
    """Replace every `Machine` by settings and findings."""
    settings = [each for each in results if isinstance(each, Setting)]
    findings = [each for each in results if isinstance(each, Finding)]
    machines = [each for each in results if isinstance(each, Machine)]
    devices = [each for each in machines if each.devices]
    if any(each.on_cpu for each in machines) and not devices:
        where = next(each.where for each in machines if each.on_cpu)
        settings.append(Setting("accelerator.type", "cpu", where))
        memory = [each for each in machines if each.memory is not None]
        settings += [Setting("accelerator.memory", each.memory, each.where) for each in memory[-1:]]
    if devices:
        findings += [
            changed(each.where, "devices are requested, so accelerator.type is not cpu")
            for each in machines
            if each.on_cpu
        ]
    for each in devices:
        findings += _devices(each, settings)
        settings += _resource(each)
    return settings, findings


def _devices(machine: Machine, settings: Sequence[Setting]) -> list[Finding]:
    asked = sum(count for _, count in machine.devices)
    used = _used(settings)
    where, found = machine.where, []
    if any(not name.startswith("amd.com/") for name, _ in machine.devices):
        names = ", ".join(name for name, _ in machine.devices)
        found.append(
            left(
                where,
                f"{names}: the operator plans for AMD GPUs and CPUs; set spec.accelerator.product, "
                "or give --product",
            )
        )
    if asked != used:
        found.append(
            changed(
                where,
                f"{asked} devices were requested and the parallelism needs {used}; set "
                "spec.parallelism.tensor or data if all are for one replica",
            )
        )
    else:
        found.append(unneeded(where, f"spec.parallelism needs as many: {used}"))
    return found


def _used(settings: Sequence[Setting]) -> int:
    """Count the devices of a pod."""
    sizes = {each.path: each.value for each in settings if isinstance(each.value, int)}
    devices = sizes.get("parallelism.tensor", 1) * sizes.get("parallelism.data", 1)
    return max(1, devices // max(1, sizes.get("parallelism.nodes", 1)))


def _resource(machine: Machine) -> list[Setting]:
    """Return the resource of AMD's device plugin, if it is not the usual one: a partition."""
    names = [name for name, _ in machine.devices if name.startswith("amd.com/") and name != AMD_GPU]
    return [Setting("accelerator.resourceName", name, machine.where) for name in names[-1:]]
