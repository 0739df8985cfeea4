"""Chat templates as models publish them: `python -m tools.published_templates` fetches some seventy
once and prints their folder.

They come out of a source distribution whose version and hash are pinned
(requirements/published-templates.txt), and are kept in the cache folder, outside of the checkout.
Used by the tests that hold the engine's chat templates to them.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from atom.utils.cache_folder import cache_folder

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENT = ROOT / "requirements" / "published-templates.txt"
_PACKAGE = "llama-cpp-python"
_MEMBERS = "/vendor/llama.cpp/models/templates/"
# Of the distribution: a folder of another name is another one's, and is fetched anew.
_VERSION = "llama-cpp-python-0.3.36"


class FetchError(Exception):
    """Say why the templates are not there, with the remedy."""


def fetch() -> Path:
    """The folder of the templates, `<name>.jinja` each, downloaded unless it is there already.
    Raises `FetchError`."""
    kept = cache_folder("templates") / _VERSION
    if kept.is_dir():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as temporary:
        unpacked = Path(temporary) / "templates"
        unpacked.mkdir()
        with tarfile.open(_download(Path(temporary))) as archive:
            for member in archive:
                if _MEMBERS in member.name and member.name.endswith(".jinja"):
                    source = archive.extractfile(member)
                    if source is not None:
                        (unpacked / Path(member.name).name).write_bytes(source.read())
        if not any(unpacked.iterdir()):
            raise FetchError(f"{_PACKAGE}: the source distribution has no {_MEMBERS}")
        unpacked.rename(kept)  # whole or not at all
    return kept


def published() -> dict[str, str]:
    """The templates by their names. Raises `FetchError`."""
    files = sorted(fetch().glob("*.jinja"))
    return {file.stem: file.read_text(encoding="utf-8") for file in files}


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--no-binary", _PACKAGE, "--require-hashes", "--requirement", str(REQUIREMENT)]
    done = subprocess.run(
        [*command, "--dest", str(folder)], capture_output=True, text=True, check=False
    )
    archives = list(folder.glob("*.tar.gz"))
    if done.returncode or not archives:
        lines = done.stderr.strip().splitlines() or ["pip said nothing"]
        raise FetchError(
            f"{REQUIREMENT}: the source distribution could not be downloaded ({lines[-1]}); check "
            "the network and pip's index, then run python -m tools.published_templates again"
        )
    return archives[0]


def main() -> int:
    try:
        print(fetch())
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
