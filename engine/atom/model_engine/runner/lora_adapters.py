"""LoraAdapters: the adapters that a model is served with, in the host's memory and on the device.

An adapter is read and checked whole before it is kept: names, ranks and shapes of all of its
matrices, and of each the part that this rank holds, in the order of the base's rows. It then costs
a copy to be put into one of the device's slots, where steps find it (`LoraWeight`). Which adapter
has which slot, and when, is the scheduler's word. `read` may run on any thread, beside steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from atom.errors import AdapterError
from atom.lora_checkpoint import WEIGHTS_FILE, AdapterConfig, find_adapter, read_adapter_config
from atom.lora_config import LoraConfig
from atom.model_ops.linear import Linear, LoraPart
from atom.model_ops.placement import in_order
from atom.models.decoder.causal_lm import CausalLM
from atom.sizing.text_part import text_name

_READERS = 4
_PREFIX = "base_model.model."
_LOW_RANK = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(\.default)?\.weight")
# What a name that is none of the model's matrices stands for, by what it holds.
_NOT_SERVED = (
    (re.compile(r"lora_embedding|embed_tokens|lm_head"), "embeddings and output heads keep theirs"),
    (re.compile(r"lora_magnitude"), "DoRA is not served"),
    (re.compile(r"\.experts\b"), "matrices of experts keep theirs"),
    (
        re.compile(r"kv_b_proj"),
        "attention multiplies with kv_b_proj in halves, which keeps its own",
    ),
    (re.compile(r"(mlp|block_sparse_moe|feed_forward)\.(gate|router)\b"), "routers keep theirs"),
    (re.compile(r"bias$"), "biases are not served"),
)


@dataclass(frozen=True, slots=True)
class LoraMatrices:
    """An adapter's part of one of the model's matrices: as of a slot in `LoraWeight`."""

    a: torch.Tensor
    b: torch.Tensor


@dataclass(frozen=True, slots=True)
class HostAdapter:
    """An adapter in the host's memory. by_linear: by the name of the matrix's module here; those
    that it leaves alone are not there."""

    by_linear: dict[str, LoraMatrices]


class LoraAdapters:
    """Keeps a model's adapters. dtype: of the adapters' matrices here, the model's own."""

    def __init__(self, model: CausalLM, config: LoraConfig, dtype: torch.dtype) -> None:
        self._config = config
        self._dtype = dtype
        self._linears = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, Linear) and module.takes_lora
        }
        self._parts = {name: each.lora_parts(name) for name, each in self._linears.items()}
        self._modules = {part.module for parts in self._parts.values() for part in parts}
        self._kept: dict[int, HostAdapter] = {}

    def attach(self, device: torch.device) -> None:
        """Make room on the device in every matrix, which is prepared by now."""
        place = torch.empty(0, dtype=self._dtype, device=device)
        for linear in self._linears.values():
            linear.make_lora(self._config.max_loras, self._config.max_rank, place)

    def read(self, path: str) -> HostAdapter:
        """Read a folder's or hub id's adapter. Raises `AdapterError`."""
        config = read_adapter_config(find_adapter(path), self._config.max_rank)
        file = config.folder / WEIGHTS_FILE
        try:
            with safe_open(file, framework="pt") as shard, torch.inference_mode():
                return self._read(_AdapterFile(config, shard, self._modules))
        except (SafetensorError, OSError) as error:
            raise AdapterError(
                f"{file}: is truncated or not a safetensors file ({error}); copy or download it "
                "again"
            ) from error

    def keep(self, number: int, adapter: HostAdapter) -> None:
        """Hold an adapter, so that it can be loaded."""
        self._kept[number] = adapter

    def drop(self, number: int) -> None:
        """Let go of an adapter; unknown ones are gone."""
        self._kept.pop(number, None)

    def keep_all(self, others: LoraAdapters) -> None:
        """Hold what was held for the same model, before it was read again."""
        self._kept = others._kept

    def load(self, number: int, slot: int) -> None:
        """Put an adapter that is kept into a slot, behind the steps that were submitted."""
        adapter = self._kept[number]
        for name, linear in self._linears.items():
            lora, own = linear.w.lora, adapter.by_linear.get(name)
            assert lora is not None, "attached when weights were prepared"
            if own is None:
                lora.a[slot].zero_()
                lora.b[slot].zero_()
            else:
                lora.a[slot].copy_(own.a, non_blocking=True)
                lora.b[slot].copy_(own.b, non_blocking=True)

    def _read(self, file: _AdapterFile) -> HostAdapter:
        wanted = {
            name: parts
            for name, parts in self._parts.items()
            if any(part.module in file.modules for part in parts)
        }
        with ThreadPoolExecutor(_READERS, "read-adapter") as readers:
            found = readers.map(partial(self._matrices, file), wanted.values())
            return HostAdapter(dict(zip(wanted, found, strict=True)))

    @torch.inference_mode()  # of each thread its own
    def _matrices(self, file: _AdapterFile, parts: list[LoraPart]) -> LoraMatrices:
        rank = self._config.max_rank
        rows = [part.region.shape[0] for part in parts]
        columns = parts[0].region.shape[1]
        pinned = torch.cuda.is_available()
        a = torch.zeros(len(parts) * rank, columns, dtype=self._dtype, pin_memory=pinned)
        b = torch.zeros(sum(rows), rank, dtype=self._dtype, pin_memory=pinned)
        for index, (part, own) in enumerate(zip(parts, torch.split(b, rows), strict=True)):
            if part.module in file.modules:
                shrink, expand = file.read(part)
                first = index * rank
                a[first : first + len(shrink)].copy_(shrink)
                own[:, : expand.shape[1]].copy_(expand)
        return LoraMatrices(a, b)


class _AdapterFile:
    """An open file of an adapter, all of whose names belong to matrices of the model. modules: the
    matrices that it has parts of."""

    def __init__(self, config: AdapterConfig, shard: Any, known: set[str]) -> None:
        self._config = config
        self._shard = shard
        self._file = config.folder / WEIGHTS_FILE
        self._names: dict[tuple[str, str], str] = {}
        for stored in shard.keys():  # noqa: SIM118 - not a dict
            found = _LOW_RANK.fullmatch(stored.removeprefix(_PREFIX))
            module = None if found is None else _module_here(found["module"], known)
            if found is None or module is None:
                raise AdapterError(f"{self._file}: {self._refusal(stored)}")
            self._names[module, found["side"]] = stored
        self.modules = {module for module, _ in self._names}
        for module in sorted(self.modules):
            for side in "AB":
                if (module, side) not in self._names:
                    raise AdapterError(
                        f"{self._file}: {module} has no lora_{side}; the file is incomplete: copy "
                        "or download it again"
                    )

    def read(self, part: LoraPart) -> tuple[torch.Tensor, torch.Tensor]:
        """The shrinking and the expanding matrix of a projection, the part of each that this rank
        holds: [r, in], [out, r], the latter with the scaling."""
        rank, (rows, columns) = self._config.rank_of(part.module), part.shape
        shapes = {"A": (rank, columns), "B": (rows, rank)}
        slices = {"A": (slice(None), slice(*part.region.columns))}
        slices["B"] = (slice(*part.region.rows), slice(None))
        read = {}
        for side, wanted in shapes.items():
            name = self._names[part.module, side]
            header = self._shard.get_slice(name)
            if tuple(header.get_shape()) != wanted:
                raise AdapterError(
                    f"{self._file}: {name} has shape {header.get_shape()}, where this model and "
                    f"rank {rank} call for {list(wanted)}{self._trained_on()}"
                )
            read[side] = header[slices[side]].float()
            if not bool(read[side].isfinite().all()):
                raise AdapterError(
                    f"{self._file}: {name} holds values that are no numbers; the adapter was "
                    "written by a run that failed: use another one"
                )
        scaled = read["B"] * self._config.scaling(part.module)
        return read["A"], in_order(scaled, part.order)

    def _refusal(self, stored: str) -> str:
        for pattern, why in _NOT_SERVED:
            if pattern.search(stored):
                return f"{stored} cannot be served: {why}; train the adapter without"
        return f"{stored} belongs to no matrix of this model{self._trained_on()}"

    def _trained_on(self) -> str:
        base = self._config.base
        return f"; the adapter was trained on {base}" if base else ""


def _module_here(name: str, known: set[str]) -> str | None:
    """The model's name of a module; a multimodal wrapper's has more in front."""
    for candidate in _names(name):
        if candidate in known:
            return candidate
    return None


def _names(name: str) -> Iterator[str]:
    yield name
    text = text_name(f"{name}.weight")
    if text is not None:
        yield text.removesuffix(".weight")
    yield f"model.{name}"
