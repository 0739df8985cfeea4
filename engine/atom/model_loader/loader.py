"""Load safetensors into a model, with progress, and prove that nothing is missing or left over.

The model says where each part of its parameters comes from (`Placement`); a checkpoint's tensors
are matched with that before anything is read, by the headers of its files. Then each file is opened
once, and of each tensor the part that this rank holds is read (memory-mapped: no second copy of the
checkpoint in memory). Several parts of a file are read at once, and files one after the other, so
that no more than one is mapped. Called by ModelRunner.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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

# Names of dtypes in headers, of those that some format holds.
_DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
    "I32": torch.int32,
    "U8": torch.uint8,
}
# Enough that one reads while another waits for a disk or a device.
_READERS = 4
# What checkpoints hold beside a model's parameters: tables that are computed, a tied head.
_COMPUTED = re.compile(r"(^|\.)(rotary_emb\.inv_freq|masked_bias|attn\.bias)$")
# And beside quantised matrices: scales of activations and of a cache, which are found anew for each
# token here; the order of inputs where it is the natural one; shapes.
_BESIDE_QUANTISED = re.compile(
    r"\.(input_scale|input_scale_ub|activation_scale|output_scale|k_scale|v_scale|q_scale|"
    r"g_idx|weight_g_idx|weight_shape)$"
)
_HEAD = "lm_head.weight"
_DUMMY_EXPONENT = 121  # 2 to the power of -6


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
    with ThreadPoolExecutor(_READERS, "read-weights") as readers:
        for file, tensors in plan.files.items():
            with _opened(file) as shard:
                wanted_of_file = [
                    (shard, name, placement)
                    for name, placements in tensors.items()
                    for placement in placements
                ]
                for size in readers.map(_fill, wanted_of_file):
                    done_bytes += size
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
        for name in placement.names:
            by_name.setdefault(name, []).append(placement)
    files: dict[Path, dict[str, list[Placement]]] = {}
    left_over: list[str] = []
    missing = dict.fromkeys(placement.name for placement in wanted)
    for file in checkpoint.weight_files():
        with _opened(file) as shard:
            for name in shard.keys():  # noqa: SIM118 - not a dict
                if name not in by_name:
                    left_over.append(name)
                    continue
                first = by_name[name][0]
                header = shard.get_slice(name)
                _check_shape(tuple(header.get_shape()), first, file)
                _check_dtype(header.get_dtype(), first, file)
                files.setdefault(file, {})[name] = by_name[name]
                missing.pop(first.name, None)
    skipped = [name for name in left_over if name.startswith(unused)] if unused else []
    if skipped:
        logger.info(
            "%s: %d tensors of layers that predict further tokens are not loaded, first %s",
            checkpoint.path, len(skipped), skipped[0],
        )  # fmt: skip
        left_over = [name for name in left_over if name not in set(skipped)]
    _check_complete(list(missing), left_over, _HEAD in by_name, checkpoint)
    return LoadPlan(files, sum(placement.target.nbytes for placement in wanted) or 1)


def _fill(wanted: tuple[Any, str, Placement]) -> int:
    """Read a placement's part of a tensor and store it; the bytes that were stored."""
    shard, name, placement = wanted
    with torch.inference_mode():  # of each thread its own
        placement.fill(_read(shard, name, placement))
    return placement.target.nbytes


def _read(shard: Any, name: str, placement: Placement) -> torch.Tensor:
    if all(
        (0, size) == bounds for size, bounds in zip(placement.shape, placement.region, strict=True)
    ):
        whole: torch.Tensor = shard.get_tensor(name)
        return whole
    bounds = tuple(slice(first, end) for first, end in placement.region)
    part: torch.Tensor = shard.get_slice(name)[bounds]
    return part


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file}: is truncated or not a safetensors file ({error}); copy or download it again"
        ) from error


def _check_shape(found: tuple[int, ...], placement: Placement, file: Path) -> None:
    if _without_ones(found) != _without_ones(placement.shape):
        raise ModelError(
            f"{file}: tensor {placement.name} has shape {list(found)}, the configuration calls for "
            f"{list(placement.shape)}; config.json and weights do not belong together"
        )


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Scales come as [N] or [N, 1], and one scale as [], [1] or [1, 1]."""
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _check_dtype(found: str, placement: Placement, file: Path) -> None:
    if _DTYPES.get(found) not in placement.dtypes:
        kind = str(_DTYPES.get(found, found)).removeprefix("torch.")
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in placement.dtypes)
        raise ModelError(
            f"{file}: tensor {placement.name} holds {kind}, where config.json calls for {wanted}: "
            "its quantization_config does not belong to what is quantised here; use the "
            "config.json that came with the weights"
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
    quantised = bool(checkpoint.config.get("quantization_config"))
    unknown = [
        name
        for name in left_over
        if not _COMPUTED.search(name)
        and not (name == _HEAD and not own_head)
        and not (quantised and _BESIDE_QUANTISED.search(name))
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
        elif name.endswith("_scale"):
            parameter.data.fill_(_DUMMY_EXPONENT if parameter.dtype is torch.uint8 else 0.02)
        elif parameter.dtype in (torch.uint8, torch.int8):
            parameter.data.random_(generator=generator)
        elif parameter.dtype is torch.float8_e4m3fn:
            normal = torch.empty(parameter.shape, device=device).normal_(generator=generator)
            parameter.data.copy_(normal)
        else:
            parameter.data.normal_(0.0, 0.02, generator=generator)
