"""LoraChanges: an adapter's version is that of the files that the engine read, or no other's."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from atom.lora_config import LoraConfig, LoraModule
from atom.model_engine.control import Control, LoadLora
from atom.model_engine.front.loras.adapter_digests import AdapterDigests, adapter_digest
from atom.model_engine.front.loras.lora_changes import LoraChanges
from atom.model_engine.front.loras.served_loras import ServedLoras
from tests.support.models.lora_adapter import make_adapter
from tests.support.models.tiny_model import make_tiny_checkpoint

_MAY_LOAD = LoraConfig(modules=(), may_load=True, max_loras=2, max_rank=8, max_cpu_loras=8)


@pytest.mark.parametrize("seed", range(4))
async def test_files_that_change_while_they_are_loaded_have_a_version_of_their_own(
    seed: int, tmp_path: Path
) -> None:
    model, dice = make_tiny_checkpoint(tmp_path / "model"), random.Random(seed)
    files = [make_adapter(tmp_path / f"adapter-{n}", model, seed=n) for n in range(2)]
    digests = [f"base+{adapter_digest(str(each))}" for each in files]
    live, held = tmp_path / "live", 0
    shutil.copytree(files[held], live)
    changes = False

    async def call(asked: Control[Any]) -> list[Any]:
        nonlocal held
        if isinstance(asked, LoadLora) and changes:  # before or behind the engine's own reading
            held = 1 - held
            shutil.copytree(files[held], live, dirs_exist_ok=True)
        return [None]

    loras, known = ServedLoras(_MAY_LOAD, "the model"), AdapterDigests(lambda: "base")
    adapters = LoraChanges(loras, call, known)
    for _ in range(6):
        changes = dice.random() < 0.5
        await adapters.load(LoraModule(name="adapter", path=str(live)), in_place=True)
        served = loras.get("adapter")
        assert served is not None
        version = known.version(served.request)
        assert version not in digests if changes else version == digests[held]
