"""Plan which tensors to read from which file of a checkpoint, from the files' headers alone.

Every tensor that the model needs is matched by name, shape and dtype with the tensors in the files.
A tensor that is missing, left over, or of another shape or dtype is a `ModelError` before any data
is read. Called by the loader; knows neither threads nor progress.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from atom.checkpoint import Checkpoint
from atom.errors import ModelError
from atom.gguf_file.header import is_gguf
from atom.model_loader.gguf_shard import GgufShard
from atom.model_ops.placement import FLOATS, Placement
from atom.sizing.families.checkpoint_names import checkpoint_name
from atom.sizing.stored_names import names_of, tensor_reader
from atom.sizing.text_part import encoder_name, text_part

logger = logging.getLogger(__name__)

# Names of the supported dtypes in headers.
_DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
    "U8": torch.uint8,
}
# Tables in checkpoints that the model computes itself.
_COMPUTED = re.compile(r"(^|\.)(rotary_emb\.inv_freq|masked_bias|attn\.bias|attention\.bias)$")
# Unused tensors of quantised matrices: scales of activations and of a cache, which are computed
# here for each token; the order of inputs if it is the natural one; shapes.
_BESIDE_QUANTISED = re.compile(
    r"\.(input_scale|input_scale_ub|input_global_scale|activation_scale|output_scale|k_scale|v_scale|q_scale|"
    r"g_idx|weight_g_idx|weight_shape)$"
)
_ORDER = re.compile(r"\.(weight_)?g_idx$")
_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class StoredAt:
    """The place of a tensor: a file, and the tensor's name there."""

    file: Path
    name: str


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The reads of each file: the placements of each of its tensors. total_bytes: of all files.
    companions: by the model's names, the places of tensors that are read together with others,
    which may be in other files."""

    files: dict[Path, dict[str, list[Placement]]]
    total_bytes: int
    companions: dict[str, StoredAt] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Header:
    """The header of one tensor in a file. name: in the model, None if the tensor is not part of the
    text model; stored_name: in the file."""

    file: Path
    stored_name: str
    name: str | None
    shape: tuple[int, ...]
    dtype: str


def plan_load(
    wanted: Sequence[Placement], checkpoint: Checkpoint, unused: tuple[str, ...] = ()
) -> LoadPlan:
    """Match the model's parameters with the tensors in the checkpoint's files. unused: name
    prefixes, up to a dot, of tensors that the model may leave unread. Raises `ModelError`."""
    by_name, fills = _wanted_tensors(wanted)
    beside = {name for each in wanted for other in each.companions for name in other.names}
    files: dict[Path, dict[str, list[Placement]]] = {}
    companions: dict[str, StoredAt] = {}
    left_over: dict[str, Header] = {}
    missing = dict.fromkeys(name for names in fills.values() for name in names)
    others: list[str] = []
    encoders = any(encoder_name(each.name) for each in wanted)
    for stored in _headers(checkpoint, encoders=encoders):
        header = _with_model_prefix(stored, by_name)
        if header.name is None:
            others.append(header.stored_name)
        elif header.name not in by_name:
            left_over[header.name] = header
        else:
            first = by_name[header.name][0]
            _refuse_quantised_head(header)
            _check_shape(header, first)
            _check_dtype(header, first)
            if header.name in beside:
                companions[header.name] = StoredAt(header.file, header.stored_name)
            else:
                files.setdefault(header.file, {})[header.stored_name] = by_name[header.name]
            for name in fills[header.name]:
                missing.pop(name, None)
    _say_skipped(checkpoint, "parts that are no text", others)
    begins = frozenset(unused)
    skipped = [name for name in left_over if begins.intersection((name, *_beginnings(name)))]
    _say_skipped(checkpoint, "layers and experts that are not computed here", skipped)
    for name in skipped:
        del left_over[name]
    _check_complete(list(missing), list(left_over), _HEAD in by_name, checkpoint)
    _check_input_order([header for name, header in left_over.items() if _ORDER.search(name)])
    total_bytes = sum(placement.target.nbytes for placement in wanted) or 1
    return LoadPlan(files, total_bytes, companions)


def _wanted_tensors(
    wanted: Sequence[Placement],
) -> tuple[dict[str, list[Placement]], dict[str, list[str]]]:
    """Return, by the name of a tensor, its placements and the parameters that it fills: a companion
    fills one of its own name."""
    by_name: dict[str, list[Placement]] = {}
    fills: dict[str, list[str]] = {}
    for placement in wanted:
        filled = [(choice, placement.name) for choice in placement.choices]
        filled += [(other, other.name) for other in placement.companions]
        for choice, parameter in filled:
            for name in choice.names:
                by_name.setdefault(name, []).append(choice)
                fills.setdefault(name, []).append(parameter)
    return by_name, fills


def _with_model_prefix(header: Header, wanted: Container[str]) -> Header:
    """Return the header by the model's name: a checkpoint that was saved without its head, such as
    an embedding model, names its tensors without the prefix `model.`."""
    name = f"model.{header.name}"
    if header.name is None or header.name in wanted or name not in wanted:
        return header
    return replace(header, name=name)


def _beginnings(name: str) -> Iterator[str]:
    """Yield the beginnings of a name that end in a dot."""
    for at, entry in enumerate(name):
        if entry == ".":
            yield name[: at + 1]


def _headers(checkpoint: Checkpoint, *, encoders: bool) -> Iterator[Header]:
    """Yield the header of every tensor of every file. Raises `ModelError` for a tensor that two
    files have."""
    rename = tensor_reader(checkpoint.config, encoders=encoders)
    file_of: dict[str, Path] = {}
    for file in checkpoint.weight_files():
        with opened(file) as shard:
            for stored_name in shard.keys():  # noqa: SIM118 - not a dict
                name, header = rename(stored_name), shard.get_slice(stored_name)
                other = file_of.setdefault(name or stored_name, file)
                if other is not file:
                    raise ModelError(
                        f"{file}: holds {stored_name}, as {other.name} does; which of the two is "
                        "meant is not known: download the folder again"
                    )
                shape = tuple(header.get_shape())
                yield Header(file, stored_name, name, shape, header.get_dtype())


def _check_input_order(unused: Sequence[Header]) -> None:
    """Check that unused indices of input groups describe contiguous groups; otherwise answers would
    be silently wrong. Only these tensors are read here: a number for each input of a matrix."""
    for file in dict.fromkeys(header.file for header in unused):
        with opened(file) as shard:
            for header in unused:
                groups = shard.get_tensor(header.stored_name) if header.file == file else None
                if groups is not None and bool((groups.diff() < 0).any()):
                    raise ModelError(
                        f"{file}: {header.stored_name} has inputs in another order, of which the "
                        "quantization_config says nothing (desc_act, actorder); use the "
                        "config.json that came with the weights"
                    )


def _say_skipped(checkpoint: Checkpoint, what: str, names: list[str]) -> None:
    if names:
        logger.info(
            "%s: %d tensors of %s are not loaded, first %s",
            checkpoint.path, len(names), what, names[0],
        )  # fmt: skip


def dtype_of(name: str) -> torch.dtype | None:
    """Return the dtype by its name in headers; None for one that no format holds."""
    return _DTYPES.get(name)


def opened(file: Path) -> Any:
    """Open a file of weights. Raises `ModelError`."""
    if is_gguf(file):
        return GgufShard(file)
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file}: is truncated or not a safetensors file ({error}); copy or download it again"
        ) from error


def _refuse_quantised_head(found: Header) -> None:
    if found.name == _HEAD and _DTYPES.get(found.dtype) not in FLOATS:
        raise ModelError(
            f"{found.file}: {found.stored_name} is quantised ({found.dtype}), which is not "
            "supported of a head; use a checkpoint that leaves lm_head plain, as one whose "
            "quantization_config names it among the ignored modules"
        )


def _check_shape(found: Header, placement: Placement) -> None:
    if _without_ones(found.shape) != _without_ones(placement.shape):
        raise ModelError(
            f"{found.file}: tensor {placement.name} has shape {list(found.shape)}, the "
            f"configuration calls for {list(placement.shape)}; config.json and weights do not "
            "belong together"
        )


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Drop trailing dimensions of one: scales may be [N] or [N, 1], and one scale [], [1] or [1,
    1]."""
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _check_dtype(found: Header, placement: Placement) -> None:
    if _DTYPES.get(found.dtype) not in placement.dtypes:
        kind = str(_DTYPES.get(found.dtype, found.dtype)).removeprefix("torch.")
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in placement.dtypes)
        raise ModelError(
            f"{found.file}: tensor {placement.name} holds {kind}, where config.json calls for "
            f"{wanted}: its quantization_config does not belong to what is quantised here; use the "
            "config.json that came with the weights"
        )


def _check_complete(
    missing: list[str], left_over: list[str], own_head: bool, checkpoint: Checkpoint
) -> None:
    if missing:
        first = checkpoint_name(missing[0], names_of(checkpoint.config))
        raise ModelError(
            f"{checkpoint.path}: {len(missing)} tensors of the model are in none of its "
            f"files of weights, first {first}; the checkpoint is incomplete or of another "
            "architecture"
        )
    quantised = bool(text_part(checkpoint.config).get("quantization_config"))
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
