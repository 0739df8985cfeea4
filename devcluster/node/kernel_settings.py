"""Kernel settings of the whole machine that the kubelet changes: remembered before, put back after.

The kubelet insists on its values at start. `restore` writes back only what still has the kubelet's
value, so that a change made by someone else in between stays.
"""

from __future__ import annotations

import json
from pathlib import Path

KUBELET_VALUES = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
ROOT = Path("/proc/sys")


def remember(file: Path, root: Path = ROOT) -> None:
    values = {
        name: (root / name).read_text().strip() for name in KUBELET_VALUES if (root / name).exists()
    }
    file.write_text(json.dumps(values))


def restore(file: Path, root: Path = ROOT) -> None:
    if not file.exists():
        return
    for name, before in json.loads(file.read_text()).items():
        setting = root / name
        if (
            name in KUBELET_VALUES
            and setting.exists()
            and setting.read_text().strip() == KUBELET_VALUES[name] != before
        ):
            setting.write_text(before)
