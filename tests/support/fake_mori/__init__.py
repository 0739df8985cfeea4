"""A double of AMD's MORI, of three releases, for ranks that are threads (ThreadWorld).

Its calls have the signatures of signatures.json, which were read from MORI's source text. What the
real one would refuse, take for something else or does not document is a ContractError: positions
whose meaning has changed, other dtypes, no tokens at all, ids of no expert, a combine whose indices
are not the rank's own routing, a kernel of one node for ranks of several, blocks for other nodes
that lose tokens or never end. Rows behind those that have come are garbage, as they are there.
"""

from __future__ import annotations

import enum
import inspect
import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.support.ranks.thread_links import ThreadLinks

_GARBAGE_ID = 1_000_000
# Behind these positions stands another parameter in another release.
_POSITIONS = {"dispatch": 4, "combine": 3, "EpDispatchCombineConfig": 0}


class ContractError(AssertionError):
    """What the real MORI would refuse, or compute something else for."""


@cache
def _record() -> dict[str, Any]:
    text = (Path(__file__).parent / "signatures.json").read_text()
    record: dict[str, Any] = json.loads(text)
    return record


GENERATIONS = tuple(_record()["generations"])


def fake_mori(generation: str, links: ThreadLinks) -> SimpleNamespace:
    """`ops` and `shmem` of this release, as one rank sees them; `finalized`: how often."""
    members = _record()["enums"][generation]["EpDispatchCombineKernelType"]
    kinds = enum.IntEnum("EpDispatchCombineKernelType", members)
    said = SimpleNamespace(finalized=0)

    def finalize(*args: Any, **kwargs: Any) -> None:
        _bind("mori.shmem.shmem_finalize", generation, args, kwargs)
        said.finalized += 1

    def config(*args: Any, **kwargs: Any) -> SimpleNamespace:
        name = "mori.ops.EpDispatchCombineConfig"
        unsaid = {"kernel_type": kinds["IntraNode"], "gpu_per_node": 8, "rdma_block_num": 0}
        return SimpleNamespace(**unsaid | _bind(name, generation, args, kwargs))

    def op(*args: Any, **kwargs: Any) -> _Op:
        bound = _bind("mori.ops.EpDispatchCombineOp", generation, args, kwargs)
        return _Op(generation, links, bound["config"])

    said.ops = SimpleNamespace(
        EpDispatchCombineConfig=config,
        EpDispatchCombineOp=op,
        EpDispatchCombineKernelType=kinds,
    )
    said.shmem = SimpleNamespace(shmem_finalize=finalize)
    return said


class _Op:
    def __init__(self, generation: str, links: ThreadLinks, config: SimpleNamespace) -> None:
        self._generation, self._links, self._config = generation, links, config
        self._routing: torch.Tensor | None = None
        self._origins: list[tuple[int, int]] = []  # rank and token of each row that has come
        _require(config.rank == links.rank, "another rank's config")
        _require(config.world_size == links.size, "another world's config")
        near = config.gpu_per_node
        _require(near.bit_count() == 1 and links.size % near == 0, f"{near} devices of a node")
        if near == links.size:
            _require(config.kernel_type.name == "IntraNode", "a kernel of several nodes")
        else:
            _require(config.kernel_type.name == "InterNodeV1LL", "a kernel of one node")
            remote = config.rdma_block_num
            _require(remote > 0 and remote % 8 == 0, "blocks that lose tokens")
            _require(remote < config.block_num, "no block for the own node")

    def dispatch(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        name = "mori.ops.EpDispatchCombineOp.dispatch"
        call = _bind(name, self._generation, args, kwargs)
        x, weights, ids, config = call["input"], call["weights"], call["indices"], self._config
        _require(x.dtype in (torch.bfloat16, torch.float32), "input of another dtype")
        _require(x.is_contiguous() and ids.is_contiguous(), "strides are not read")
        _require(0 < len(x) <= config.max_num_inp_token_per_rank, f"{len(x)} tokens")
        _require(ids.dtype is torch.int32 and weights.dtype is torch.float32, "another dtype")
        _require(ids.shape == (len(x), config.num_experts_per_token), "experts of each token")
        experts = config.num_experts_per_rank * config.world_size
        _require(bool(((ids >= 0) & (ids < experts)).all()), "an id that is no expert's")
        self._routing = ids.clone()
        rows = self._rows(self._links.world.everyone(self._links.rank, (x, weights, ids)))
        return self._buffers(x, rows)

    def _rows(self, sent: list[Any]) -> list[Any]:
        each, rank = self._config.num_experts_per_rank, self._links.rank
        rows, self._origins = [], []
        for sender, (x, weights, ids) in enumerate(sent):
            for token in range(len(x)):
                if bool((ids[token] // each == rank).any()):
                    rows.append((x[token], weights[token], ids[token]))
                    self._origins.append((sender, token))
        return rows

    def _buffers(self, x: torch.Tensor, rows: list[Any]) -> tuple[Any, ...]:
        config = self._config
        room = config.world_size * config.max_num_inp_token_per_rank
        top_k = config.num_experts_per_token
        out = torch.full((room, config.hidden_dim), torch.nan, dtype=x.dtype)
        weights = torch.full((room, top_k), torch.nan)
        ids = torch.full((room, top_k), _GARBAGE_ID, dtype=torch.int32)
        for at, row in enumerate(rows):
            out[at], weights[at], ids[at] = row
        return out, weights, None, ids, torch.tensor([len(rows)], dtype=torch.int32)

    def combine(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
        name = "mori.ops.EpDispatchCombineOp.combine"
        call = _bind(name, self._generation, args, kwargs)
        x, ids, config = call["input"], call["indices"], self._config
        _require(self._routing is not None and torch.equal(ids, self._routing), "own routing")
        _require(x.is_contiguous() and len(x) >= len(self._origins), "rows that have come")
        shares = list(zip(self._origins, x, strict=False))
        total = torch.zeros((config.max_num_inp_token_per_rank, config.hidden_dim))
        for rank_shares in self._links.world.everyone(self._links.rank, shares):
            for (rank, token), row in rank_shares:
                if rank == self._links.rank:
                    total[token] += row.float()
        self._routing = None
        return total.to(x.dtype), None


def _bind(
    name: str, generation: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    listed = _record()["functions"][name]["signatures"][generation]
    while isinstance(listed, str):
        listed = _record()["functions"][name]["signatures"][listed.removeprefix("=")]
    short = name.rpartition(".")[2]
    _require(len(args) <= _POSITIONS.get(short, 0), f"{short}: pass what follows by keyword")
    parameters = [
        inspect.Parameter(
            each["name"],
            inspect.Parameter.KEYWORD_ONLY,
            default=each.get("default", inspect.Parameter.empty),
        )
        for each in listed
    ]
    names = [each["name"] for each in listed]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    bound = inspect.Signature(parameters).bind(**given)
    return dict(bound.arguments)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ContractError(f"mori: {what}")
