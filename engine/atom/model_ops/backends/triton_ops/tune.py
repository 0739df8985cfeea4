"""The command that measures kernels' configurations, of a package that images leave out.

python -m atom.model_ops.backends.triton_ops.tune [--only PART] [--shape OUTxIN] [--head-dim D]
"""

from __future__ import annotations

import importlib
import sys

from atom.model_ops.backends.triton_ops.compile.tuning import has_measurements


def main() -> int:
    if not has_measurements():
        print(
            "error: the package atom_nvidia, which measures, is not installed: the engine's images "
            "leave it out; run the command from the wheel of atom-platform",
            file=sys.stderr,
        )
        return 1
    code: int = importlib.import_module("atom_nvidia.tune.__main__").main()
    return code


if __name__ == "__main__":
    sys.exit(main())
