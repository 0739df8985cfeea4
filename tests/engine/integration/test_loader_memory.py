"""Loading takes no more memory beside the weights than one shard of a checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

_SHARDS, _TENSORS, _ROWS = 6, 6, 2048
_SHARD_BYTES = _TENSORS * _ROWS * _ROWS * 2
# In a process of its own, since what counts is a process' peak.
_SCRIPT = """
import sys
from pathlib import Path
import torch
from torch import nn
from atom.checkpoint import Checkpoint
from atom.model_loader.loader import load_model
from atom.model_ops.placement import Placement

class Matrices(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.held = {name: torch.zeros(ROWS, ROWS, dtype=torch.bfloat16) for name in names}
    def placements(self, name):
        for own, target in self.held.items():
            yield Placement.whole(own, target)
    def unused_tensors(self):
        return ()

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024

folder = Path(sys.argv[1])
model = Matrices([f"t{i}" for i in range(COUNT)])
for tensor in model.held.values():
    tensor.fill_(1)  # every page is there before the peak is taken
before = peak()
load_model(model, Checkpoint(folder, {}, {}), lambda share: None)
assert all(float(tensor[0, 0]) == int(name[1:]) for name, tensor in model.held.items())
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
def test_the_peak_beside_the_weights_is_one_shard(tmp_path: Path) -> None:
    names = {}
    for shard in range(_SHARDS):
        tensors = {
            f"t{index}": torch.full((_ROWS, _ROWS), float(index), dtype=torch.bfloat16)
            for index in range(shard * _TENSORS, (shard + 1) * _TENSORS)
        }
        file = f"model-{shard}.safetensors"
        save_file(tensors, tmp_path / file)
        names |= dict.fromkeys(tensors, file)
    index = '{"weight_map": ' + str(names).replace("'", '"') + "}"
    (tmp_path / "model.safetensors.index.json").write_text(index)
    script = _SCRIPT.replace("ROWS", str(_ROWS)).replace("COUNT", str(len(names)))
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Two shards at once would be more than this.
    assert int(done.stdout) < 1.2 * _SHARD_BYTES + 16 * 2**20
