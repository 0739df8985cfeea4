"""A Hugging Face checkpoint folder, or a model in one GGUF file, inspected before it is loaded.

This module finds the checkpoint (downloading a hub id with a progress bar), reads its JSON files,
or makes them from the GGUF file's metadata, and lists its weight files, whose headers correct
config.json. Torch-free: the API server, the engine process and tools all start here. It does not
know the tensors' meaning. Every fault names the file and the remedy (`ModelError`).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atom.bounded_input.bounded_json import (
    LISTING,
    BoundedJsonError,
)
from atom.bounded_input.safetensors_header import StoredTensor, hold_the_same, read_header
from atom.errors import AtomError, ModelError
from atom.gguf_file.header import is_gguf
from atom.gguf_file.header import read_header as read_gguf_header
from atom.gguf_file.model_config import model_config
from atom.model_source.json_object import read_json
from atom.model_source.s3_snapshot import SCHEME, S3Source, downloaded_folder
from atom.model_source.snapshot_folder import (
    MISTRAL_WEIGHTS,
    NEEDED_PATTERNS,
    TEXT_PATTERNS,
    WithoutWeights,
    ensure_snapshot,
)
from atom.sizing.errors import SizingError
from atom.sizing.quantization.config import PLAIN_MODULES
from atom.sizing.quantization.modelopt import METHOD as MODELOPT
from atom.sizing.stored_names import is_tied, tensor_reader

logger = logging.getLogger(__name__)

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
GENERATION_FILE = "generation_config.json"
# The Model Optimizer's, beside a config.json that does not tell of the quantisation.
MODELOPT_FILE = "hf_quant_config.json"
_HEAD = "lm_head.weight"
_EMBEDDINGS = (
    "model.embed_tokens.weight",
    "embed_tokens.weight",
    "transformer.wte.weight",
    "model.decoder.embed_tokens.weight",
)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's folder and its JSON files. path: the folder, or the GGUF file; config,
    generation_config: its JSON files ({} when there is none)."""

    path: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]

    @property
    def architecture(self) -> str:
        names = self.config.get("architectures") or ["(none)"]
        return str(names[0])

    @property
    def config_place(self) -> Path:
        """Return the path of the configuration, for errors."""
        return self.path / "config.json" if self.path.is_dir() else self.path

    def weight_files(self) -> list[Path]:
        """Return the safetensors shards in a fixed order, or the GGUF file; raises `ModelError`
        when any is missing."""
        if self.path.is_file():
            return [self.path]
        index = self.path / INDEX_FILE
        if index.exists():
            weight_map = read_json(index, LISTING).get("weight_map")
            if not isinstance(weight_map, dict) or not weight_map:
                raise ModelError(f"{index}: has no weight_map; download the file again")
            names = set(map(str, weight_map.values()))
            outside = sorted(name for name in names if Path(name).name != name)
            if outside:
                raise ModelError(
                    f"{index}: names {outside[0]!r}, which is no file of this folder; download the "
                    "file again"
                )
            files = [self.path / name for name in sorted(names)]
        else:
            files = [self.path / SINGLE_FILE]
            shards = sorted(self.path.glob("*-of-*.safetensors"))
            if shards and not files[0].is_file():
                raise ModelError(
                    f"{index}: missing, although the folder holds {shards[0].name}; which shards "
                    "belong together is not known: copy or download the folder again"
                )
        for file in files:
            if not file.is_file():
                self._refuse_mistral_names()
                raise ModelError(
                    f"{file}: missing; the checkpoint is incomplete. "
                    f"Copy or download the folder again (safetensors files are required)"
                )
        return files

    def _refuse_mistral_names(self) -> None:
        for file in sorted(self.path.glob(MISTRAL_WEIGHTS)):
            raise ModelError(
                f"{file}: holds weights under Mistral's own names, which are not read; add the "
                "model*.safetensors files of the same repository, or give a repository that has "
                "them"
            )


def find_checkpoint(model: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the folder of `model`: an existing path, a hub id (org/name) downloaded into the hub's
    cache, or s3://bucket/prefix downloaded into ours; or a GGUF file. weights: whether they are
    downloaded too.

    Raises `ModelError` when it is none of these, or when the download fails.
    """
    if model.startswith(SCHEME):
        bucket, source = downloaded_folder(model), S3Source(model)
        if weights:
            ensure_snapshot(source, model, revision, bucket)
            return bucket
        # Separate from a whole one: an engine uses any folder that is marked complete.
        text = bucket.with_name(f"{bucket.name}--text")
        ensure_snapshot(WithoutWeights(source), model, revision, text)
        return text
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if is_gguf(folder):
        return folder
    if folder.is_file():
        raise ModelError(f"{model}: is a file; give the checkpoint's folder, or a GGUF file")
    if not is_hub_id(model):
        raise ModelError(
            f"{model}: no such folder; give a checkpoint folder, a GGUF file, a hub id such as "
            "Qwen/Qwen3-0.6B, or s3://bucket/prefix"
        )
    patterns = NEEDED_PATTERNS if weights else TEXT_PATTERNS
    return download(model, patterns, spared=[MISTRAL_WEIGHTS], revision=revision)


def is_hub_id(model: str) -> bool:
    """Return whether `model` would be looked for on the hub; a folder that exists comes before
    it."""
    if model.startswith((".", "/", "~")) or Path(model).expanduser().exists():
        return False
    return _HUB_ID.fullmatch(model) is not None


def download(
    model: str,
    patterns: Sequence[str],
    *,
    spared: Sequence[str] = (),
    revision: str | None = None,
) -> Path:
    """Download the files of a hub id that match the patterns into the hub's cache. Raises
    `ModelError`."""
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                model,
                revision=revision,
                allow_patterns=list(patterns),
                ignore_patterns=list(spared),
            )
        )
    except Exception as error:  # the hub client raises many unrelated types
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ModelError(
            f"{model}: no such folder, and the download from the hub failed ({reason}). "
            f"Check the name, the network, and HF_TOKEN for gated models "
            f"(HF_ENDPOINT is {os.environ.get('HF_ENDPOINT', 'not set')})"
        ) from error


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the folder's JSON files, or a GGUF file's metadata as these. Raises `ModelError` when it
    is not a checkpoint."""
    if path.is_file():
        return Checkpoint(
            path=path, config=model_config(read_gguf_header(path)), generation_config={}
        )
    config_file = path / "config.json"
    if not config_file.is_file():
        if (path / "params.json").is_file():
            raise ModelError(
                f"{path}: is a checkpoint in Mistral's own form (params.json and consolidated "
                "weights), which is not read; give the folder or repository of the same model in "
                "Hugging Face's form (config.json and model*.safetensors); tekken.json is taken "
                "beside these"
            )
        for file in sorted(path.glob("*.gguf")):
            raise ModelError(f"{path}: holds GGUF files; give one of them, such as {file}")
        raise ModelError(
            f"{path}: has no config.json, so it is not a Hugging Face checkpoint folder; "
            f"give the folder that holds config.json and *.safetensors"
        )
    generation_file = path / GENERATION_FILE
    generation = read_json(generation_file) if generation_file.is_file() else {}
    config = _with_modelopt(read_json(config_file), path / MODELOPT_FILE)
    found = Checkpoint(path=path, config=config, generation_config=generation)
    return _as_files_say(found)


def _with_modelopt(config: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the config with the quantisation that the file tells of, if its own does not."""
    parts = [config, config.get("text_config")]
    told = any(isinstance(part, dict) and part.get("quantization_config") for part in parts)
    if told or not file.is_file():
        return config
    section = read_json(file, LISTING).get("quantization")
    if not isinstance(section, dict) or not section.get("quant_algo"):
        return config
    return {**config, "quantization_config": {"quant_method": MODELOPT, **section}}


def _as_files_say(checkpoint: Checkpoint) -> Checkpoint:
    """Correct config.json by the headers of the weight files. A head that differs from the
    embedding is used although config.json ties both, as in transformers; and the files decide which
    modules AWQ left unquantised."""
    config = checkpoint.config
    section = config.get("quantization_config")
    by_awq = isinstance(section, dict) and section.get("quant_method") == "awq"
    try:
        read, tied = tensor_reader(config), is_tied(config)
        if not (tied or by_awq):
            return checkpoint
        stored: dict[str, StoredTensor] = {}
        for file in checkpoint.weight_files():
            stored.update(read_header(file))
        named = {read(name): tensor for name, tensor in stored.items()}
        own_head = tied and _has_own_head(named)
    except (AtomError, SizingError, OSError, BoundedJsonError):
        return checkpoint  # the reader of the config.json or the weights reports the fault
    changes: dict[str, Any] = {}
    if own_head:
        logger.info(
            "%s: %s differs from the embedding, although config.json ties both; it is used",
            checkpoint.path, _HEAD,
        )  # fmt: skip
        changes |= dict.fromkeys(("tie_word_embeddings", *config.keys() & {"tie_embedding"}), False)
    # Files without any quantised module belong to another config.json, which the loader refuses.
    if isinstance(section, dict) and by_awq and any(name.endswith(".qweight") for name in stored):
        plain = sorted(
            module
            for name in stored
            if (module := name.removesuffix(".weight")) != name
            and f"{module}.qweight" not in stored
        )
        changes["quantization_config"] = {**section, PLAIN_MODULES: plain}
    return replace(checkpoint, config=config | changes)


def _has_own_head(stored: Mapping[str | None, StoredTensor]) -> bool:
    head = stored.get(_HEAD)
    embedding = next((stored[name] for name in _EMBEDDINGS if name in stored), None)
    return head is not None and (embedding is None or not hold_the_same(head, embedding))


def weights_bytes_on_disk(path: Path) -> int:
    """Return the size of the safetensors files in a folder, 0 when there are none; or of the GGUF
    file."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))
