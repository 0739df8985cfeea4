"""LoraAdapters: the adapters that a model is served with, in the host's memory and on the device.

An adapter is read and checked whole before it is stored: names, ranks and shapes of all of its
matrices, and the part of each that this rank holds, in the order of the base's rows. Moving an
adapter to one of the device's slots, which steps read (`LoraWeight`), then costs one copy. The
scheduler decides which adapter has which slot, and when. `read` may run on any thread while steps
run.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from atom.errors import AdapterError
from atom.lora_checkpoint import WEIGHTS_FILE, find_adapter, read_adapter_config
from atom.lora_config import LoraConfig
from atom.model_engine.runner.lora_file import AdapterFile, AdapterNames
from atom.model_ops.linear import Linear, LoraPart
from atom.model_ops.moe.stacked_linear import LoraStack, StackedLinear
from atom.models.decoder.causal_lm import CausalLM

_READERS = 4


@dataclass(frozen=True, slots=True)
class LoraMatrices:
    """An adapter's part of one of the model's matrices: as of a slot in `LoraWeight`."""

    a: torch.Tensor
    b: torch.Tensor


@dataclass(frozen=True, slots=True)
class HostAdapter:
    """Hold an adapter in the host's memory. by_linear: by the module name of the matrix here;
    matrices that it leaves unchanged are absent."""

    by_linear: dict[str, LoraMatrices]


class LoraAdapters:
    """Keeps a model's adapters. dtype: of the adapters' matrices here, the model's own; hf_config:
    the model's config.json."""

    def __init__(
        self,
        model: CausalLM,
        config: LoraConfig,
        dtype: torch.dtype,
        hf_config: Mapping[str, Any],
    ) -> None:
        self._config = config
        self._dtype = dtype
        self._linears = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, Linear) and module.takes_lora
        }
        self._stacks = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, StackedLinear) and config.experts
        }
        self._lora_stacks = {name: each.lora_stack(name) for name, each in self._stacks.items()}
        self._parts = {name: each.lora_parts(name) for name, each in self._linears.items()}
        of_experts = [parts for each in self._lora_stacks.values() for parts in each.parts]
        self._modules = {
            part.module for parts in (*self._parts.values(), *of_experts) for part in parts
        }
        self._names = AdapterNames(self._modules, self._lora_stacks.values(), hf_config)
        self._kept: dict[int, HostAdapter] = {}

    def attach(self, device: torch.device) -> None:
        """Make room on the device in every matrix, which is prepared by now."""
        place = torch.empty(0, dtype=self._dtype, device=device)
        held: list[Linear | StackedLinear] = [*self._linears.values(), *self._stacks.values()]
        for linear in held:
            linear.make_lora(self._config.max_loras, self._config.max_rank, place)

    def read(self, path: str) -> HostAdapter:
        """Read a folder's or hub id's adapter. Raises `AdapterError`."""
        config = read_adapter_config(find_adapter(path), self._config.max_rank)
        file = config.folder / WEIGHTS_FILE
        try:
            with safe_open(file, framework="pt") as shard, torch.inference_mode():
                return self._read(AdapterFile(config, shard, self._names))
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
        """Take over the host adapters of `others`, which served the same model before a reload."""
        self._kept = others._kept

    def load(self, number: int, slot: int) -> None:
        """Copy an adapter from the host into a slot, after the submitted steps."""
        adapter = self._kept[number]
        for name, linear in (*self._linears.items(), *self._stacks.items()):
            lora, own = linear.w.lora, adapter.by_linear.get(name)
            assert lora is not None, "attached when weights were prepared"
            if own is None:
                lora.a[slot].zero_()
                lora.b[slot].zero_()
            else:
                lora.a[slot].copy_(own.a, non_blocking=True)
                lora.b[slot].copy_(own.b, non_blocking=True)

    def _read(self, file: AdapterFile) -> HostAdapter:
        wanted = {
            name: parts
            for name, parts in self._parts.items()
            if any(part.module in file.modules for part in parts)
        }
        stacks = {
            name: stack
            for name, stack in self._lora_stacks.items()
            if stack.name in file.modules
            or any(part.module in file.modules for parts in stack.parts for part in parts)
        }
        with ThreadPoolExecutor(_READERS, "read-adapter") as readers:
            found = readers.map(partial(self._matrices, file), wanted.values())
            of_experts = readers.map(partial(self._of_stack, file), stacks.values())
            return HostAdapter(
                {
                    **dict(zip(wanted, found, strict=True)),
                    **dict(zip(stacks, of_experts, strict=True)),
                }
            )

    @torch.inference_mode()  # of each thread its own
    def _matrices(self, file: AdapterFile, parts: list[LoraPart]) -> LoraMatrices:
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

    @torch.inference_mode()
    def _of_stack(self, file: AdapterFile, stack: LoraStack) -> LoraMatrices:
        """Read the parts of the experts that this rank holds, which a file has in one tensor or
        expert by expert."""
        rank, experts = self._config.max_rank, len(stack.held)
        rows = [part.region.shape[0] for part in stack.parts[0]]
        columns = stack.parts[0][0].region.shape[1]
        pinned = torch.cuda.is_available()
        a = torch.zeros(experts, len(rows) * rank, columns, dtype=self._dtype, pin_memory=pinned)
        b = torch.zeros(experts, sum(rows), rank, dtype=self._dtype, pin_memory=pinned)
        whole = file.read_stack(stack) if stack.name in file.modules else None
        for slot, parts in enumerate(stack.parts):
            for index, (part, own) in enumerate(
                zip(parts, torch.split(b[slot], rows), strict=True)
            ):
                if whole is not None:
                    shrink, expand = whole.of(stack.held[slot], index, part)
                elif part.module in file.modules:
                    shrink, expand = file.read(part)
                else:
                    continue
                first = index * rank
                a[slot, first : first + len(shrink)].copy_(shrink)
                own[:, : expand.shape[1]].copy_(expand)
        return LoraMatrices(a, b)
