"""Load weights into a model, with progress, and prove that no tensor is missing or left over.

The model states the source of each part of its parameters (`Placement`). The placements are matched
with the checkpoint's tensors before any data is read (load_plan.py). Then each file is opened once,
and this rank's part of each tensor is read. Safetensors files are memory-mapped, so memory holds no
second copy of the checkpoint; GGUF files are read some rows at a time (gguf_shard.py). Several
parts of a file are read concurrently, but files one after the other, so at most one file is mapped,
and those that have the scales of its matrices (other_files.py). Called by ModelRunner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from safetensors import SafetensorError
from torch import nn

from atom.checkpoint import Checkpoint
from atom.errors import ModelError
from atom.model_loader.gguf_shard import GgufShard
from atom.model_loader.load_plan import dtype_of, opened, plan_load
from atom.model_loader.other_files import OtherFiles
from atom.model_loader.staged_file import StagedFile, StagedTensor
from atom.model_ops.placement import FLOATS, Placement

Progress = Callable[[float], None]

# Enough that one reads while another waits for a disk or a device.
_READERS = 4
_SAMPLE = 256  # values of a part that are looked at
_DUMMY_EXPONENT = 121  # 2 to the power of -6


class PlacedModel(Protocol):
    """The interface of a model that can be loaded: its modules by their checkpoint names. Each
    module with parameters has `placements(name)`."""

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...

    def unused_tensors(self) -> tuple[str, ...]:
        """Return the name prefixes of tensors that a checkpoint may contain and the model does not
        read."""


class Placed(Protocol):
    """A module with parameters."""

    def placements(self, name: str) -> Iterator[Placement]: ...


def load_model(model: PlacedModel, checkpoint: Checkpoint, progress: Progress) -> None:
    """Fill every parameter of `model`. `progress` gets the share of bytes done, 0 to 1.

    Raises `ModelError` naming the file (and tensor) that is damaged, misshapen, missing or left
    over.
    """
    wanted = placements_of(model)
    plan = plan_load(wanted, checkpoint, model.unused_tensors())
    done_bytes = 0
    for file, tensors in plan.files.items():
        # A file that is closed after a fault, while a thread reads it, would hide the fault.
        with (
            opened(file) as shard,
            _staged(file, shard, wanted) as staged,
            OtherFiles(plan.companions, file, shard) as others,
            ThreadPoolExecutor(_READERS, "read-weights") as readers,
        ):
            wanted_of_file = [
                _Part(file, shard, name, placement, staged, others)
                for name, placements in tensors.items()
                for placement in placements
            ]
            for size in readers.map(_fill, wanted_of_file):
                done_bytes += size
                progress(min(done_bytes / plan.total_bytes, 1.0))
    progress(1.0)


def check_model(model: PlacedModel, checkpoint: Checkpoint) -> None:
    """Check that `load_model` can fill `model`, whose parameters may be on the meta device. The
    check reads the files' headers and the first values of each tensor. Raises `ModelError`."""
    plan = plan_load(placements_of(model), checkpoint, model.unused_tensors())
    for file, tensors in plan.files.items():
        with opened(file) as shard:
            if isinstance(shard, GgufShard):
                continue
            for name, (placement, *_) in tensors.items():
                header = shard.get_slice(name)
                first = header[:1] if header.get_shape() else shard.get_tensor(name)
                _refuse_no_numbers(_Part(file, shard, name, placement), first)


def placements_of(model: PlacedModel) -> list[Placement]:
    """List every placement of the model's modules."""
    return [
        placement
        for name, module in model.named_modules()
        if hasattr(module, "placements")
        for placement in cast(Placed, module).placements(name)
    ]


@dataclass(frozen=True, slots=True)
class _Part:
    """Name a part of a tensor of an open file. staged: the file once more, for tensors that go to a
    GPU as they are; others: the files of the tensors that are read together with it."""

    file: Path
    shard: Any
    name: str
    placement: Placement
    staged: StagedFile | None = None
    others: OtherFiles | None = None

    def companions(self) -> list[torch.Tensor]:
        """Read the parts of the tensors that the placement needs beside its own."""
        if self.others is None:
            return []
        places = [(self.others.place(each.names), each) for each in self.placement.companions]
        return [_read(self.others.opened(at.file), at.name, each) for at, each in places]


@contextmanager
def _staged(file: Path, shard: Any, wanted: Sequence[Placement]) -> Iterator[StagedFile | None]:
    """Open the file for the tensors that a GPU gets; None if there are none."""
    if isinstance(shard, GgufShard) or not any(each.target.is_cuda for each in wanted):
        yield None
        return
    with StagedFile.opened(file) as staged:
        yield staged


def _fill(wanted: _Part) -> int:
    """Read a placement's part of a tensor and store it; the bytes that were stored."""
    try:
        with torch.inference_mode():  # of each thread its own
            staged = _read_staged(wanted)
        if staged is not None:
            part, sample = staged.whole, staged.sample
        else:
            part = sample = _read(wanted.shard, wanted.name, wanted.placement)
        companions = wanted.companions()
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{wanted.file}: {wanted.name} cannot be read ({error}), although its header is whole; "
            "check the disk or the network share, then copy or download the file again"
        ) from error
    with torch.inference_mode():
        _refuse_no_numbers(wanted, sample)
        wanted.placement.fill(part, *companions)
    return wanted.placement.target.nbytes


def _refuse_no_numbers(wanted: _Part, part: torch.Tensor) -> None:
    """Refuse weights that are all NaN, which would silently give nonsense. A sample of each part
    suffices: reading all of it once more would take as long as loading."""
    if not part.is_floating_point() or not part.numel():
        return
    flat = part.reshape(-1) if part.is_contiguous() else part.flatten()
    step = max(1, flat.numel() // _SAMPLE)
    if bool(torch.isnan(flat[::step].float()).all()):
        raise ModelError(
            f"{wanted.file}: {wanted.name} holds no numbers: every value that was looked at is "
            "NaN; the checkpoint was written by a run that failed: use another one"
        )


def _read_staged(wanted: _Part) -> StagedTensor | None:
    """Read a whole tensor onto its GPU; None for a part of one, or one that is converted first."""
    placement = wanted.placement
    target, whole = placement.target, _is_whole(placement)
    if wanted.staged is None or not target.is_cuda or not whole or placement.convert is not None:
        return None
    stored = dtype_of(wanted.shard.get_slice(wanted.name).get_dtype())
    return (
        None
        if stored is None
        else wanted.staged.read(wanted.name, target.new_empty(0, dtype=stored))
    )


def _is_whole(placement: Placement) -> bool:
    bounds = zip(placement.shape, placement.region, strict=True)
    return all((0, size) == region for size, region in bounds)


def _read(shard: Any, name: str, placement: Placement) -> torch.Tensor:
    if isinstance(shard, GgufShard):
        # A conversion or quantisation needs the whole tensor.
        kept = placement.convert is None and placement.target.dtype in FLOATS
        dtype = placement.target.dtype if kept else torch.float32
        return shard.read(name, placement.region, dtype)
    if _is_whole(placement):
        whole: torch.Tensor = shard.get_tensor(name)
        return whole
    bounds = tuple(slice(first, end) for first, end in placement.region)
    part: torch.Tensor = shard.get_slice(name)[bounds]
    return part


def fill_dummy(model: nn.Module, seed: int) -> None:
    """Fill a model with random weights for benchmarks: small normal values, norms at one."""
    parameters = dict(model.named_parameters())
    device = next(iter(parameters.values())).device
    generator = torch.Generator(device=device).manual_seed(seed)
    for name, parameter in parameters.items():
        if "norm" in name:
            parameter.data.fill_(1.0)
        elif name.endswith("_scale"):
            parameter.data.fill_(_DUMMY_EXPONENT if parameter.dtype is torch.uint8 else 0.02)
        elif parameter.dtype is torch.int32:  # groups of inputs: each has equally many
            groups = parameters[name.removesuffix("groups") + "scale"].shape[-1]
            inputs = torch.arange(parameter.shape[-1], device=device)
            parameter.data.copy_((inputs % groups).expand_as(parameter))
        elif parameter.dtype is torch.int64:  # experts of each token, different ones
            count = parameter.shape[-1]
            parameter.data.copy_(torch.arange(count, device=device).expand_as(parameter))
        elif parameter.dtype in (torch.uint8, torch.int8):
            parameter.data.random_(generator=generator)
        elif parameter.dtype is torch.float8_e4m3fn:
            normal = torch.empty(parameter.shape, device=device).normal_(generator=generator)
            parameter.data.copy_(normal)
        else:
            parameter.data.normal_(0.0, 0.02, generator=generator)
