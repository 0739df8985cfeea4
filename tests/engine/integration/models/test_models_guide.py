"""The guide to adding a model adds one: its steps are run as they are written."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import transformers

from atom.sizing import architectures, config_fields, layers
from atom.sizing.families import reading
from tests.engine.integration.models.test_model_parity import NEW_TOKENS
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.greedy_oracle import greedy
from tests.support.models.tiny_model import make_tiny_checkpoint

GUIDE = Path(__file__).parents[4] / "docs/guides/adding-a-model.md"
NAME = "ExampleForCausalLM"


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the model as the guide states it: a function, a file, and one row of the table."""
    facts, family, row = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names = reading.__dict__ | layers.__dict__ | config_fields.__dict__ | architectures.__dict__
    exec(facts, names)
    module = ModuleType("atom.models.example")
    exec(family, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    added_row = eval(row, names)
    monkeypatch.setitem(architectures.ARCHITECTURES, NAME, added_row)
    monkeypatch.setitem(architectures.SERVED, NAME, added_row)


@pytest.mark.usefixtures("added")
def test_the_model_of_the_guide_runs(tmp_path: Path) -> None:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    folder = make_tiny_checkpoint(tmp_path, "mixtral", extra=experts)
    prompt = list(range(3, 30))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = folder / "config.json"
    content = json.loads(config.read_text())
    # Of the model_type alone: a row also names the class of a config.json without architectures.
    content |= {"architectures": None, "model_type": "example"}
    config.write_text(json.dumps(content))
    driver = CoreDriver(str(folder))
    (tokens,) = driver.generate([prompt], max_tokens=NEW_TOKENS, ignore_eos=True)
    assert tokens == greedy(model, prompt, tokens)
    assert len(tokens) == NEW_TOKENS
