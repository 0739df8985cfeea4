"""Build the exchange of KV pages of an engine core that has started."""

from __future__ import annotations

import logging
import secrets
import time

from atom.config import Config
from atom.errors import ConfigError
from atom.kv_transfer_config.values import FLAG, KVTransferConfig
from atom.model_engine.executor.base import Executor
from atom.model_engine.front.loras.adapter_digests import adapter_digest
from atom.model_engine.front.weights_update import version_of
from atom.model_engine.kv_transfer.cache_layout_digest import layout_digest, layout_facts
from atom.model_engine.kv_transfer.cache_pages import CachePages
from atom.model_engine.kv_transfer.greeting import IPC, NIXL, Greeting
from atom.model_engine.kv_transfer.nixl_agent import NixlAgent, NixlError
from atom.model_engine.kv_transfer.page_ring import host_identity
from atom.model_engine.kv_transfer.ring_offers import Movers
from atom.model_engine.kv_transfer.side_channel import ChannelPlace, SideChannel
from atom.model_engine.kv_transfer.transfer import KVTransfer
from atom.model_engine.page_access import DeviceMemory
from atom.model_engine.scheduler import Scheduler
from atom.model_engine.transfer_legs import TicketNote
from atom.model_engine.wire.engine_protocol import EngineReport

logger = logging.getLogger(__name__)

_NO_DEVICE = "the KV cache is not on one GPU alone"
_NO_CHECKPOINTS = (
    "there is no memory for checkpoints of states, so no pages are exchanged and every prompt is "
    "computed where it is answered; give the KV cache more memory"
)


def build_transfer(
    config: Config,
    scheduler: Scheduler,
    executor: Executor,
    report: EngineReport,
    adapters: dict[int, str],
) -> KVTransfer | None:
    """Begin to serve other engines; None without --kv-transfer-config. adapters: digests of the
    files of those that are loaded later, by number; gets those of the start. Raises `ConfigError`
    if the place of the side channel is taken."""
    asked = config.cache.kv_transfer
    if asked is None:
        return None
    rank, blocks = config.parallel.data_parallel_rank, scheduler.blocks
    pages = executor.transferred_pages()
    facts = layout_facts(config, report, pages.tensors(), version_of(config.model))
    layout = layout_digest(facts)
    engine_id = asked.engine_id if rank == 0 else f"{asked.engine_id}_dp{rank}"
    ranks = config.parallel.tensor_parallel_size
    for number, module in enumerate(config.lora.modules if config.lora else (), start=1):
        adapters[number] = adapter_digest(module.folder or module.path)
    cache = CachePages(blocks, pages, config.model.facts.vision, adapters)
    if config.model.facts.keeps_states and cache.states is None:
        logger.warning("%s: %s", FLAG, _NO_CHECKPOINTS)
    port = asked.port + rank if asked.port else 0
    boot_id = secrets.token_hex(16)
    transports, movers = usable_transports(asked, boot_id, pages.device_memory)
    device = "" if movers.device is None else movers.device.kind
    channel = SideChannel(
        ChannelPlace(asked.host, port, asked.allowed_networks, cache.most_page_bytes),
        Greeting(engine_id, boot_id, layout, facts, ranks, transports, host_identity(), device),
        movers,
    )
    try:
        bound = channel.start()
    except OSError as error:
        channel.close()
        raise ConfigError(
            f"{FLAG}: the side channel cannot listen on {asked.host}:{port}: {error}; give another "
            "side_channel_host or side_channel_port"
        ) from error
    note = TicketNote(engine_id, asked.host, bound, layout, "", 0, [], rank, ranks)
    transfer = KVTransfer(asked, cache, channel, note, time.monotonic)
    scheduler.keeper, transfer.speeds.pace = transfer.kept, scheduler.pace
    return transfer


def usable_transports(
    config: KVTransferConfig, name: str, device: DeviceMemory | None = None
) -> tuple[tuple[str, ...], Movers]:
    """Return the transports that this machine has, and their means. name: of the agent of NIXL;
    device: the memory of this engine's device. Raises `ConfigError` if NIXL was asked for alone and
    cannot start."""
    asked = config.transports
    if IPC not in asked:
        device = None
    elif device is None:
        asked = tuple(each for each in asked if each != IPC)
        logger.info("%s: pages travel by %s: %s", FLAG, " or ".join(asked), _NO_DEVICE)
    if NIXL not in asked:
        return asked, Movers(device=device)
    try:
        return asked, Movers(NixlAgent(name, serves=config.role.produces), device)
    except NixlError as error:
        others = tuple(each for each in asked if each != NIXL)
        if not others:
            raise ConfigError(f"{FLAG}: transport is nixl: {error}") from error
        logger.warning("%s: pages travel by %s: %s", FLAG, " or ".join(others), error)
        return others, Movers(device=device)
