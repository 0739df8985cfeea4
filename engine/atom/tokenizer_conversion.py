"""Make a tokenizer.json for a checkpoint that has none, once, and cache it.

The conversion runs in a separate process (convert_tokenizer.py), since it imports transformers,
which the server's processes do not. The cached file is named by a hash of its source files. Called
by the tokenizer.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from atom.errors import ModelError
from atom.utils.cache_folder import cache_folder

# Any of these holds a vocabulary that can be converted.
VOCABULARIES = ("tekken.json", "tiktoken.model", "tokenizer.model", "vocab.json")
# Other files that affect the result.
_OTHER_SOURCES = ("tokenizer_config.json", "merges.txt", "added_tokens.json", "config.json")
_FORMAT = b"2"  # of the cached files; increase it if the conversion changes
_SECONDS = 600.0  # a vocabulary of 256,000 pieces takes some 20
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TIKTOKEN_CACHE_DIR": "",  # no second copy of a local file
    "TRANSFORMERS_VERBOSITY": "error",
}


def convertible(folder: Path) -> bool:
    """Return whether the folder has a vocabulary of another kind than tokenizer.json."""
    return any((folder / name).is_file() for name in VOCABULARIES)


def converted_folder(folder: Path, cleaner: ExitStack) -> Path:
    """Return a folder with tokenizer.json and tokenizer_config.json: from the cache, or made now; a
    temporary one that `cleaner` removes if the cache cannot be written. Raises `ModelError`."""
    kept = cache_folder("tokenizers") / _digest(folder)
    if (kept / "tokenizer.json").is_file():
        return kept
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=kept.parent, prefix=".making-"))
    except OSError:
        made = Path(cleaner.enter_context(tempfile.TemporaryDirectory()))
        _convert(folder, made)
        return made
    try:
        _convert(folder, made)
        made.rename(kept)
    except ModelError:
        shutil.rmtree(made, ignore_errors=True)
        raise
    except OSError:  # another process was first
        cleaner.callback(shutil.rmtree, made, ignore_errors=True)
        return made
    return kept


def _convert(folder: Path, target: Path) -> None:
    command = [sys.executable, "-m", "atom.convert_tokenizer", str(folder), str(target)]
    try:
        done = subprocess.run(
            command,
            env=os.environ | _OFFLINE,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _refusal(folder, f"the conversion took more than {_SECONDS:g} s") from None
    if done.returncode or not (target / "tokenizer.json").is_file():
        lines = done.stderr.strip().splitlines()
        reason = lines[-1].removeprefix("error: ") if lines else f"it ended with {done.returncode}"
        raise _refusal(folder, reason)


def _refusal(folder: Path, reason: str) -> ModelError:
    return ModelError(
        f"{folder}: has no tokenizer.json, and its vocabulary cannot be converted into one "
        f"({reason}). The conversion needs atom-platform[conversion]; or write the file with "
        "transformers' AutoTokenizer.save_pretrained"
    )


def _digest(folder: Path) -> str:
    digest = hashlib.sha256(_FORMAT)
    for name in (*VOCABULARIES, *_OTHER_SOURCES):
        file = folder / name
        if file.is_file():
            content = file.read_bytes()
            digest.update(f"{name} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()
