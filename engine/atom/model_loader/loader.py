"""Load safetensors into a model, with progress, and prove that nothing is missing.

Opens each shard once and copies tensor by tensor (memory-mapped: no second copy of the checkpoint
in memory). Which parameter a checkpoint tensor fills is the model's `packed_modules_mapping` and
the parameter's own `weight_loader`. Called by ModelRunner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from atom.checkpoint import Checkpoint
from atom.errors import ModelError
from atom.model_ops.linear import ShapeMismatchError, copy_weight

logger = logging.getLogger(__name__)

Progress = Callable[[float], None]


class LoadableModel(Protocol):
    """What a model must say of itself to be loaded.

    packed_modules_mapping: checkpoint name of a projection → the merged module that holds it.
    """

    @property
    def packed_modules_mapping(self) -> Mapping[str, str]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


def load_model(model: LoadableModel, checkpoint: Checkpoint, progress: Progress) -> None:
    """Fill every parameter of `model`. `progress` gets the share of bytes done, 0 to 1.

    Raises `ModelError` naming the file (and tensor) that is damaged, mismatched or missing.
    """
    files = checkpoint.weight_files()
    parameters = dict(model.named_parameters())
    loaded: set[tuple[str, str | None]] = set()
    unused: list[str] = []
    total_bytes = sum(file.stat().st_size for file in files) or 1
    done_bytes = 0
    for file in files:
        for name, tensor in _tensors(file):
            done_bytes += tensor.nbytes
            target, shard = _target(name, model.packed_modules_mapping)
            if target not in parameters:
                unused.append(name)
                continue
            _fill(parameters[target], tensor, shard, where=f"{file}: tensor {name}")
            loaded.add((target, shard))
            progress(min(done_bytes / total_bytes, 1.0))
    _check_complete(model, parameters, loaded, checkpoint.path)
    if unused:
        logger.info("%d checkpoint tensors have no use here, first %s", len(unused), unused[0])
    progress(1.0)


def _tensors(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        with safe_open(file, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118 - not a dict
                yield name, shard.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file}: is truncated or not a safetensors file ({error}); copy or download it again"
        ) from error


def _target(name: str, packed: Mapping[str, str]) -> tuple[str, str | None]:
    """(parameter name, shard) of a checkpoint tensor."""
    parts = name.split(".")
    for index, part in enumerate(parts):
        if part in packed:
            return ".".join([*parts[:index], packed[part], *parts[index + 1 :]]), part
    return name, None


def _fill(parameter: nn.Parameter, tensor: torch.Tensor, shard: str | None, *, where: str) -> None:
    load = getattr(parameter, "weight_loader", None)
    try:
        if load is None:
            copy_weight(parameter.data, tensor)
        else:
            load(parameter, tensor, shard)
    except ShapeMismatchError as error:
        raise ModelError(
            f"{where} {error}; config.json and weights do not belong together"
        ) from error


def _check_complete(
    model: LoadableModel,
    parameters: dict[str, nn.Parameter],
    loaded: set[tuple[str, str | None]],
    folder: Path,
) -> None:
    shards_of: dict[str, list[str | None]] = {}
    for merged_shard, packed in model.packed_modules_mapping.items():
        shards_of.setdefault(packed, []).append(merged_shard)
    missing: list[str] = []
    for name in parameters:
        module = name.split(".")[-2]
        for shard in shards_of.get(module, [None]):
            if (name, shard) not in loaded:
                missing.append(name if shard is None else name.replace(module, shard))
    if missing:
        raise ModelError(
            f"{folder}: {len(missing)} tensors of the model are in none of its safetensors files, "
            f"first {missing[0]}; the checkpoint is incomplete or of another architecture"
        )


def fill_dummy(model: LoadableModel, seed: int) -> None:
    """Random weights for benchmarks: small normal values, norms at one."""
    parameters = dict(model.named_parameters())
    device = next(iter(parameters.values())).device
    generator = torch.Generator(device=device).manual_seed(seed)
    for name, parameter in parameters.items():
        if "norm" in name:
            parameter.data.fill_(1.0)
        else:
            parameter.data.normal_(0.0, 0.02, generator=generator)
