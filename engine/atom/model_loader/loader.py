"""Load safetensors into a model, with progress, and prove that nothing is missing or left over.

The model says where each part of its parameters comes from (`Placement`); a checkpoint's tensors
are matched with that before anything is read, by the headers of its files. Then each file is opened
once, and of each tensor the part that this rank holds is read (memory-mapped: no second copy of the
checkpoint in memory). Called by ModelRunner.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from atom.checkpoint import Checkpoint
from atom.errors import ModelError
from atom.model_ops.placement import Placement

logger = logging.getLogger(__name__)

Progress = Callable[[float], None]

_FLOATS = {torch.float32, torch.bfloat16, torch.float16}
# What checkpoints hold beside a model's parameters: tables that are computed, a tied head.
_COMPUTED = re.compile(r"(^|\.)(rotary_emb\.inv_freq|masked_bias|attn\.bias)$")
_HEAD = "lm_head.weight"


class PlacedModel(Protocol):
    """What a model must say of itself to be loaded: its modules by their checkpoint names, of which
    those with parameters have `placements(name)`."""

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...

    def unused_tensors(self) -> tuple[str, ...]:
        """How names of tensors begin that a checkpoint may hold beside what is wanted."""


class Placed(Protocol):
    """A module with parameters."""

    def placements(self, name: str) -> Iterator[Placement]: ...


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """By file what is read from it: the placements of each of its tensors. total_bytes: of all."""

    files: dict[Path, dict[str, list[Placement]]]
    total_bytes: int


def load_model(model: PlacedModel, checkpoint: Checkpoint, progress: Progress) -> None:
    """Fill every parameter of `model`. `progress` gets the share of bytes done, 0 to 1.

    Raises `ModelError` naming the file (and tensor) that is damaged, misshapen, missing or left
    over.
    """
    wanted = placements_of(model)
    plan = plan_load(wanted, checkpoint, model.unused_tensors())
    done_bytes = 0
    for file, tensors in plan.files.items():
        with _opened(file) as shard:
            for name, placements in tensors.items():
                for placement in placements:
                    part = _read(shard, placement)
                    _check_dtype(part, file, name)
                    placement.fill(part)
                    done_bytes += part.nbytes
                progress(min(done_bytes / plan.total_bytes, 1.0))
    progress(1.0)


def placements_of(model: PlacedModel) -> list[Placement]:
    """Every placement of the model's modules."""
    return [
        placement
        for name, module in model.named_modules()
        if hasattr(module, "placements")
        for placement in cast(Placed, module).placements(name)
    ]


def plan_load(
    wanted: Sequence[Placement], checkpoint: Checkpoint, unused: tuple[str, ...] = ()
) -> LoadPlan:
    """Match what the model wants with what the checkpoint's files hold; `unused`: how names begin
    that may be left over. Raises `ModelError`."""
    by_name: dict[str, list[Placement]] = {}
    for placement in wanted:
        by_name.setdefault(placement.name, []).append(placement)
    files: dict[Path, dict[str, list[Placement]]] = {}
    left_over: list[str] = []
    missing = dict.fromkeys(by_name)
    for file in checkpoint.weight_files():
        with _opened(file) as shard:
            for name in shard.keys():  # noqa: SIM118 - not a dict
                if name not in by_name:
                    left_over.append(name)
                    continue
                _check_shape(tuple(shard.get_slice(name).get_shape()), by_name[name][0], file)
                files.setdefault(file, {})[name] = by_name[name]
                missing.pop(name, None)
    skipped = [name for name in left_over if name.startswith(unused)] if unused else []
    if skipped:
        logger.info(
            "%s: %d tensors of layers that predict further tokens are not loaded, first %s",
            checkpoint.path, len(skipped), skipped[0],
        )  # fmt: skip
        left_over = [name for name in left_over if name not in set(skipped)]
    _check_complete(list(missing), left_over, _HEAD in by_name, checkpoint)
    return LoadPlan(files, sum(placement.target.nbytes for placement in wanted) or 1)


def _read(shard: Any, placement: Placement) -> torch.Tensor:
    if all(
        (0, size) == bounds for size, bounds in zip(placement.shape, placement.region, strict=True)
    ):
        whole: torch.Tensor = shard.get_tensor(placement.name)
        return whole
    bounds = tuple(slice(first, end) for first, end in placement.region)
    part: torch.Tensor = shard.get_slice(placement.name)[bounds]
    return part


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file}: is truncated or not a safetensors file ({error}); copy or download it again"
        ) from error


def _check_shape(found: tuple[int, ...], placement: Placement, file: Path) -> None:
    if found != placement.shape:
        raise ModelError(
            f"{file}: tensor {placement.name} has shape {list(found)}, the configuration calls for "
            f"{list(placement.shape)}; config.json and weights do not belong together"
        )


def _check_dtype(part: torch.Tensor, file: Path, name: str) -> None:
    if part.dtype not in _FLOATS:
        kind = str(part.dtype).removeprefix("torch.")
        raise ModelError(
            f"{file}: tensor {name} holds {kind}, which is a quantised format that config.json's "
            "quantization_config does not name; use the checkpoint that belongs to it"
        )


def _check_complete(
    missing: list[str], left_over: list[str], own_head: bool, checkpoint: Checkpoint
) -> None:
    if missing:
        raise ModelError(
            f"{checkpoint.path}: {len(missing)} tensors of the model are in none of its "
            f"safetensors files, first {missing[0]}; the checkpoint is incomplete or of another "
            "architecture"
        )
    unknown = [
        name
        for name in left_over
        if not _COMPUTED.search(name) and not (name == _HEAD and not own_head)
    ]
    if unknown:
        raise ModelError(
            f"{checkpoint.path}: {len(unknown)} tensors of the checkpoint are no part of a "
            f"{checkpoint.architecture} of this config.json, first {unknown[0]}; the weights are "
            "of another model, or of one that this version would compute without them"
        )


def fill_dummy(model: nn.Module, seed: int) -> None:
    """Random weights for benchmarks: small normal values, norms at one."""
    parameters = dict(model.named_parameters())
    device = next(iter(parameters.values())).device
    generator = torch.Generator(device=device).manual_seed(seed)
    for name, parameter in parameters.items():
        if "norm" in name:
            parameter.data.fill_(1.0)
        else:
            parameter.data.normal_(0.0, 0.02, generator=generator)
