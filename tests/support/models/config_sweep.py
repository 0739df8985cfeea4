"""Every field of a family's config.json moved, left out or null in turn, held to transformers.

A case is equal, refused by the engine with a typed error, or refused by transformers; whatever else
is a fault: the engine would answer otherwise than the model does, without a word.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from atom.errors import AtomError
from atom.sampling_params import SamplingParams
from tests.support.engine_core.core_driver import CoreDriver

TOLERANCE = 2e-3
PROMPT_TOKENS, NEW_TOKENS = 45, 4
OPTIONS: dict[str, Any] = {
    "num_kv_blocks": 120, "max_num_seqs": 2, "max_num_batched_tokens": 32, "max_model_len": 256,
}  # fmt: skip
_NOT_COMPUTED_BY = (
    "architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "eos_token_id",
    "bos_token_id", "pad_token_id", "vocab_size", "use_cache", "output_router_logits", "auto_map",
    "initializer_range", "router_aux_loss_coef",
)  # fmt: skip
_ACTIVATIONS = ("silu", "gelu_pytorch_tanh", "gelu", "relu", "relu2")


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a config.json. path: of the field; value: ... to leave the field out."""

    path: tuple[str, ...]
    value: Any

    def __str__(self) -> str:
        """Name the change in a test's id."""
        value = "absent" if self.value is ... else json.dumps(self.value)
        return f"{'.'.join(self.path)}={value[:30]}"

    def of(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of the config.json with the change."""
        changed = json.loads(json.dumps(config))
        place = changed
        for key in self.path[:-1]:
            place = place[key]
        if self.value is ...:
            del place[self.path[-1]]
        else:
            place[self.path[-1]] = self.value
        return dict(changed)


def changes_of(config: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[Change]:
    """Yield every change of every field, of fields in objects too."""
    for key, value in config.items():
        if not path and key in _NOT_COMPUTED_BY:
            continue
        place = (*path, key)
        if isinstance(value, dict):
            yield from changes_of(value, place)
        for other in (*_moved(key, value), ..., None):
            if other != value or isinstance(other, bool) != isinstance(value, bool):
                yield Change(place, other)


def _moved(key: str, value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value // 2)
    elif isinstance(value, float):
        yield from (value * 2, value / 2)
    elif isinstance(value, str) and "act" in key:
        yield from _ACTIVATIONS
    elif isinstance(value, list) and len(set(map(str, value))) > 1:
        yield value[1:] + value[:1]


def verdict(folder: Path, config: dict[str, Any], change: Change) -> str:
    """Say what became of a change: equal, refused, by transformers, or a fault in words."""
    (folder / "config.json").write_text(json.dumps(change.of(config)))
    model = _oracle(folder)
    if model is None:
        return "by transformers"
    draw = random.Random(1)
    prompt = [draw.randrange(3, 250) for _ in range(PROMPT_TOKENS)]
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=0)
    try:
        engine = CoreDriver(str(folder), **OPTIONS)
    except AtomError:
        return "refused"
    try:
        (told,) = engine.generate_each([(prompt, params, None)])
    except Exception as error:
        return f"fault: the first request ends the engine: {error!r}"
    found = torch.tensor([entry.logprob for entry in engine.logprobs[0]])
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + told])).logits[0, len(prompt) - 1 : -1]
    wanted = logits.log_softmax(-1)[range(len(told)), told]
    if not bool(wanted.isfinite().all()):
        return "by transformers"
    distance = float((found - wanted).abs().max())
    return "equal" if distance < TOLERANCE else f"fault: {distance:.4f} from transformers"


def _oracle(folder: Path) -> nn.Module | None:
    """The model as transformers reads it, None if it refuses or the weights are of another one."""
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True
        )
        if info["missing_keys"] or info["mismatched_keys"]:
            return None
        with torch.inference_mode():
            model.eval()(torch.tensor([[5, 6, 7]]))
    except Exception:  # of many kinds, all of which mean that there is no answer to hold to
        return None
    found: nn.Module = model.eval()
    return found
