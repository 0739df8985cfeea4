"""Read and check the folder of a PEFT adapter before any part of it is used.

This module finds the folder (downloading a hub id), reads adapter_config.json and refuses, by name,
the settings that the engine would compute differently than PEFT. Torch-free. The runner, which
knows the model, assigns tensors to matrices (model_engine/runner/lora_adapters.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atom.bounded_input.name_patterns import NameEnds, NamePatternError
from atom.checkpoint import download, is_hub_id
from atom.errors import AdapterError, ConfigError, ModelError
from atom.lora_config import LoraConfig
from atom.model_source.json_object import read_json

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_PATTERNS = [CONFIG_FILE, WEIGHTS_FILE]
# Fields that must be unset, and the feature that each one means.
_REFUSED = {
    "use_dora": "DoRA, which scales the base's rows",
    "modules_to_save": "whole modules of its own (modules_to_save)",
    "trainable_token_indices": "embeddings of its own (trainable_token_indices)",
    "layer_replication": "layers that the model has not (layer_replication)",
    "lora_bias": "biases of its own (lora_bias)",
    "use_qalora": "pooled inputs (use_qalora)",
    "use_bdlora": "blocks of its matrices (use_bdlora)",
    "alora_invocation_tokens": "a beginning within the prompt (alora_invocation_tokens)",
    "arrow_config": "a router between adapters (arrow_config)",
    "kasa_config": "singular values of the base (kasa_config)",
    "monteclora_config": "matrices that are drawn (monteclora_config)",
}
_MOST = 1e30  # of a scale
# These begin from another base than the model as it is: the adapter is a difference to that one.
_OTHER_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")


@dataclass(frozen=True, slots=True)
class NamedValues:
    """Numbers by patterns of the ends of modules' names, in PEFT's naming."""

    ends: NameEnds
    values: tuple[float, ...]

    def of(self, module: str, usual: float) -> float:
        """Return the number of the first pattern that matches; `usual` if no pattern does."""
        place = self.ends.first(module)
        return usual if place is None else self.values[place]


NO_VALUES = NamedValues(NameEnds(()), ())


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """The content of adapter_config.json. rank, alpha: of every matrix except those that a pattern
    names, by PEFT's name of the module; base: the model that the adapter was trained on, "" if the
    file does not name one; target_parameters: suffixes of the names of stacked experts'
    matrices."""

    folder: Path
    rank: int
    alpha: float
    is_rank_stabilised: bool
    base: str
    rank_pattern: NamedValues = NO_VALUES
    alpha_pattern: NamedValues = NO_VALUES
    target_parameters: frozenset[str] = frozenset()

    def rank_of(self, module: str) -> int:
        return int(self.rank_pattern.of(module, self.rank))

    def scaling(self, module: str) -> float:
        """Compute the factor of a matrix's product (rsLoRA: arXiv 2312.03732)."""
        alpha, rank = self.alpha_pattern.of(module, self.alpha), self.rank_of(module)
        return alpha / (rank**0.5 if self.is_rank_stabilised else rank)

    @property
    def most_rank(self) -> int:
        return int(max(self.rank, *self.rank_pattern.values, self.rank))


def adapters_to_serve(
    lora: LoraConfig | None, *, has_experts: bool, shares_experts: bool, nodes: int
) -> LoraConfig | None:
    """Find and check the adapters that are served from the start. has_experts: whether the model
    does; shares_experts: ranks of data parallelism share them; nodes: that share a model. Raises
    `ConfigError` or `AdapterError`."""
    if lora is None:
        return None
    if shares_experts:
        raise ConfigError(
            "enable_lora: ranks that share experts agree on their steps before they know of "
            "adapters; leave out --enable-dp-attention"
        )
    if lora.experts and not has_experts:
        raise ConfigError("--lora-experts: the model has no experts; leave it out")
    if lora.may_load and nodes > 1:
        raise ConfigError(
            "allow_runtime_lora_updating: an adapter's folder is read on every node, and one that "
            "lacks it would end the others; give --lora-modules, or one node"
        )
    found = []
    for module in lora.modules:
        folder = find_adapter(module.path)
        read_adapter_config(folder, lora.max_rank)
        found.append(replace(module, folder=str(folder)))
    return replace(lora, modules=tuple(found))


def find_adapter(path: str) -> Path:
    """Return the folder of an adapter: an existing path, or a hub id downloaded into the hub's
    cache. Raises `AdapterError`."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if not is_hub_id(path):
        raise AdapterError(
            f"{path}: no such folder; give the folder of a PEFT adapter, with {CONFIG_FILE}, or a "
            "hub id"
        )
    try:
        return download(path, _PATTERNS)
    except ModelError as error:
        raise AdapterError(str(error)) from error


def read_adapter_config(folder: Path, most_rank: int) -> AdapterConfig:
    """Read and check an adapter's configuration. most_rank: the highest rank that a slot can hold.
    Raises `AdapterError`."""
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise AdapterError(f"{folder}: has no {CONFIG_FILE}, so it is not a PEFT adapter's folder")
    try:
        raw = read_json(file)
    except ModelError as error:
        raise AdapterError(str(error)) from error
    kind = raw.get("peft_type")
    if kind != "LORA":
        raise AdapterError(f"{file}: peft_type is {kind!r}; only LORA is served")
    for name, meaning in _REFUSED.items():
        if raw.get(name):
            raise AdapterError(
                f"{file}: {name} is set: the adapter has {meaning}, which is not served; merge it "
                "into its base model, or train it without"
            )
    if raw.get("bias") not in (None, "none"):
        raise AdapterError(
            f"{file}: bias is {raw['bias']!r}: the adapter has biases of its own, which are not "
            "served; merge it into its base model, or train it with bias none"
        )
    start = raw.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_OTHER_BASE):
        raise AdapterError(
            f"{file}: init_lora_weights is {start!r}: the adapter is a difference to a base whose "
            "weights it changed; convert it by PEFT's path_initial_model_for_weight_conversion"
        )
    config = AdapterConfig(
        folder=folder,
        rank=_whole(file, "r", raw.get("r")),
        alpha=_number(file, "lora_alpha", raw.get("lora_alpha")),
        is_rank_stabilised=bool(raw.get("use_rslora")),
        base=str(raw.get("base_model_name_or_path") or ""),
        rank_pattern=_named(file, "rank_pattern", raw, _whole),
        alpha_pattern=_named(file, "alpha_pattern", raw, _number),
        target_parameters=_names(file, raw.get("target_parameters")),
    )
    if config.most_rank > most_rank:
        raise AdapterError(
            f"{file}: rank {config.most_rank}, and there is room for {most_rank}; start the server "
            f"with --max-lora-rank {config.most_rank}"
        )
    if not (folder / WEIGHTS_FILE).is_file():
        other = folder / "adapter_model.bin"
        remedy = (
            f"{other.name} may run code and is not read; save the adapter as safetensors"
            if other.is_file()
            else "copy or download the folder again"
        )
        raise AdapterError(f"{folder / WEIGHTS_FILE}: missing; {remedy}")
    return config


def _named(
    file: Path, name: str, raw: Mapping[str, Any], read: Callable[[Path, str, object], float]
) -> NamedValues:
    found = raw.get(name) or {}
    if not isinstance(found, dict):
        raise AdapterError(f"{file}: {name} must be an object, got {repr(found)[:80]}")
    values = tuple(read(file, f"{name} {key[:80]}", value) for key, value in found.items())
    try:
        return NamedValues(NameEnds(tuple(found)), values)
    except NamePatternError as error:
        raise AdapterError(
            f"{file}: {name} names modules by a pattern: {error}; name the modules in full"
        ) from None


def _names(file: Path, value: object) -> frozenset[str]:
    if value is not None and not isinstance(value, list):
        raise AdapterError(f"{file}: target_parameters must be a list, got {repr(value)[:80]}")
    return frozenset(map(str, value or ()))


def _whole(file: Path, name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise AdapterError(
            f"{file}: {name} must be a whole number, 1 or more, got {repr(value)[:80]}"
        )
    return value


def _number(file: Path, name: str, value: object) -> float:
    # JSON's whole numbers may exceed a float's range.
    if not isinstance(value, int | float) or isinstance(value, bool) or not -_MOST < value < _MOST:
        raise AdapterError(f"{file}: {name} must be a finite number, got {repr(value)[:80]}")
    return float(value)
