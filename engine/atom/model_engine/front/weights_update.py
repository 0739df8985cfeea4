"""New weights for the served model: which ones may replace the present ones, and their version.

Torch-free: checks on a checkpoint's JSON files are made here, before an engine process is involved;
its tensors are matched there. A version is a digest of samples of the files, equal for equal files
wherever they are, or a name that the caller gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from atom.checkpoint import find_checkpoint, open_checkpoint
from atom.config_values import ModelConfig, OpenRequestsMode
from atom.end_tokens import end_token_ids
from atom.errors import ModelError, RequestError
from atom.pooling_config import as_causal_model
from atom.sizing.architectures import ARCHITECTURES
from atom.sizing.text_part import text_part

# Fields of a config.json without effect on the computation here.
TELLS_NOTHING = frozenset(
    {
        "_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache",
        "eos_token_id", "bos_token_id", "pad_token_id", "architectures", "auto_map",
    }
)  # fmt: skip
_SAMPLES = 1024  # of all files together
_SAMPLE_BYTES = 4096
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class WeightsUpdate:
    """Weights that are to be taken. path: the checkpoint's folder, or its GGUF file."""

    path: Path
    version: str
    mode: OpenRequestsMode


def find_update(
    model: ModelConfig, asked: str, version: str | None, mode: OpenRequestsMode
) -> WeightsUpdate:
    """Find a checkpoint, downloading a hub's, and compare its configuration with the served
    model's. Raises `RequestError`."""
    if model.facts.is_fallback:
        raise RequestError(
            f"model_path: {model.architecture} has no family here, and new weights for it are not "
            "proven; start a server for the other checkpoint",
            param="model_path",
        )
    try:
        path = find_checkpoint(asked)
        checkpoint = open_checkpoint(path)
        config = checkpoint.config
        if model.pooling is not None:
            config = as_causal_model(config, frozenset(ARCHITECTURES))
        differences = list(_differences(model.hf_config, text_part(config)))
        ends = {each for each in end_token_ids(checkpoint) if 0 <= each < model.vocab_size}
        if not differences and ends != set(model.eos_token_ids):
            differences.append(
                f"end tokens are {sorted(ends)} there and {sorted(model.eos_token_ids)} here"
            )
        checkpoint.weight_files()
    except ModelError as error:
        raise RequestError(f"model_path: {error}", param="model_path") from error
    if differences:
        shown = "; ".join(differences[:_MOST_NAMED])
        more = len(differences) - _MOST_NAMED
        raise RequestError(
            f"model_path: {checkpoint.config_place} is of another model than the one that is "
            f"served: {shown}{f'; and {more} more' if more > 0 else ''}. Weights are taken from a "
            "checkpoint of the same shape; start a server for this one",
            param="model_path",
        )
    return WeightsUpdate(path, version or weights_version(path), mode)


def _differences(served: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Name the fields by which two configurations would be computed differently."""
    for key in sorted(served.keys() | other.keys()):
        if key not in TELLS_NOTHING and served.get(key) != other.get(key):
            yield f"{key} is {other.get(key)} there and {served.get(key)} here"


def version_of(model: ModelConfig) -> str:
    """Return the version of the weights that a server starts with."""
    return "fp_random" if model.load_dummy else weights_version(model.path)


def weights_version(path: Path) -> str:
    """Return a digest of a checkpoint's weights: of each file its size, and samples of its bytes,
    so that it takes no longer for large ones."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    digest = xxhash.xxh3_64()
    for file in files:
        size = file.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with file.open("rb") as opened:
            for offset in _offsets(size, max(2, _SAMPLES // len(files))):
                opened.seek(offset)
                digest.update(opened.read(_SAMPLE_BYTES))
    return f"fp_{digest.hexdigest()}"


def _offsets(size: int, count: int) -> list[int]:
    """Return the offsets of samples in a file of `size` bytes; they cover a small file whole."""
    last = size - _SAMPLE_BYTES
    if last <= count * _SAMPLE_BYTES:
        return list(range(0, size, _SAMPLE_BYTES))
    return [last * number // (count - 1) for number in range(count)]
