"""Loading a whole model takes, beside its weights, at most 1.2 × the largest file and a little.

Sharded experts, which are stacked as they are read, and quantised matrices, which are repacked.
Each is loaded in a process of its own, since what counts is a process' peak.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from atom.config import EngineOptions, build_config
from atom.model_engine.model_runner import ModelRunner
from atom.model_loader.weight_loader import placements_of
from atom.model_ops.linear import Build
from atom.models.registry import build_model

ROOT = Path(__file__).resolve().parents[4]
SHAPE = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 1024,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
}
EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 3,
    "num_experts": 32,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 768,
}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
DENSE = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 48}
CASES: dict[str, dict[str, Any]] = {
    "experts": EXPERTS,
    "awq": {**DENSE, "quantization_config": AWQ},
    "nvfp4": {**DENSE, "quantization_config": NVFP4},
    "experts in fp8 blocks": {**EXPERTS, "num_hidden_layers": 4, "quantization_config": FP8},
}
SHARDS = 5
# Four parts are read at a time. What repacks one of int4 holds its 3,072 × 1,024 codes as int32 and
# again in another order: up to 24 MiB each, by how the threads meet.
MARGIN_BYTES = 4 * 24 * 2**20
# Loads it, and prints the peak beside the weights.
_SCRIPT = """
import sys
from pathlib import Path
import torch
from atom.checkpoint import open_checkpoint
from atom.model_loader.weight_loader import load_model
from tests.engine.integration.models.test_loader_memory import built

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024

folder = Path(sys.argv[1])
model = built(folder)
with torch.inference_mode():
    for parameter in model.parameters():
        parameter.data.view(torch.uint8).fill_(0)  # every page is there before
before, seen = peak(), []
load_model(model, open_checkpoint(folder), seen.append)
assert seen == sorted(seen) and seen[-1] == 1.0, "progress goes on"
assert len(set(seen)) > 50, "and shows every part"
print(peak() - before)
"""


def built(folder: Path) -> torch.nn.Module:
    """The model of a folder, in bfloat16 and without weights yet."""
    runner = ModelRunner(build_config(EngineOptions.of(model=str(folder), device="cpu")))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return build_model(runner._speculation.spec, Build(runner._ops))
    finally:
        torch.set_default_dtype(before)


def write_shards(folder: Path) -> None:
    """All that the model asks for."""
    matrices = placements_of(built(folder))
    wanted = {each.name: each for place in matrices for each in (place, *place.companions)}
    names, file_of = list(wanted), {}
    for shard in range(SHARDS):
        file = f"model-{shard}.safetensors"
        own = names[shard * len(names) // SHARDS : (shard + 1) * len(names) // SHARDS]
        tensors = {}
        for name in own:
            dtype = wanted[name].dtypes[0]
            dtype = torch.bfloat16 if dtype is torch.float32 else dtype
            tensors[name] = torch.ones(wanted[name].shape).to(dtype)
        save_file(tensors, folder / file)
        file_of |= dict.fromkeys(own, file)
    index = json.dumps({"weight_map": file_of})
    (folder / "model.safetensors.index.json").write_text(index)


def peak_of_load(folder: Path) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.preloaded.script", _SCRIPT, str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
@pytest.mark.parametrize(
    "case",
    [
        "experts",
        *(pytest.param(each, marks=pytest.mark.whole) for each in CASES if each != "experts"),
    ],
)
def test_the_peak_beside_the_weights_is_one_file(tmp_path: Path, case: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE | CASES[case]))
    write_shards(tmp_path)
    sizes = [file.stat().st_size for file in tmp_path.glob("*.safetensors")]
    largest = max(sizes)
    found = peak_of_load(tmp_path)
    assert found <= 1.2 * largest + MARGIN_BYTES, (case, found / 2**20, largest / 2**20)
    assert sum(sizes) > 1.2 * largest + 2 * MARGIN_BYTES, "all files at once would be more"
