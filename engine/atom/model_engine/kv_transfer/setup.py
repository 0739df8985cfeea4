"""Build the exchange of KV pages of an engine core that has started."""

from __future__ import annotations

import secrets
import time

from atom.config import Config
from atom.errors import ConfigError
from atom.kv_transfer_config.values import FLAG
from atom.model_engine.executor.base import Executor
from atom.model_engine.kv_transfer.cache_layout_digest import layout_digest, layout_facts
from atom.model_engine.kv_transfer.cache_pages import CachePages
from atom.model_engine.kv_transfer.greeting import Greeting
from atom.model_engine.kv_transfer.side_channel import ChannelPlace, SideChannel
from atom.model_engine.kv_transfer.transfer import KVTransfer
from atom.model_engine.scheduler import Scheduler
from atom.model_engine.transfer_legs import TicketNote
from atom.model_engine.wire.engine_protocol import EngineReport


def build_transfer(
    config: Config, scheduler: Scheduler, executor: Executor, report: EngineReport
) -> KVTransfer | None:
    """Begin to serve other engines; None without --kv-transfer-config. Raises `ConfigError` if the
    place of the side channel is taken."""
    asked = config.cache.kv_transfer
    if asked is None:
        return None
    rank, blocks = config.parallel.data_parallel_rank, scheduler.blocks
    pages = executor.transferred_pages()
    facts = layout_facts(config, report, pages.tensors())
    layout = layout_digest(facts)
    engine_id = asked.engine_id if rank == 0 else f"{asked.engine_id}_dp{rank}"
    ranks = config.parallel.tensor_parallel_size
    most = max(pages.page_bytes(group) for group in range(len(blocks.groups)))
    port = asked.port + rank if asked.port else 0
    channel = SideChannel(
        ChannelPlace(asked.host, port, asked.allowed_networks, most),
        Greeting(engine_id, secrets.token_hex(16), layout, facts, ranks),
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
    transfer = KVTransfer(asked, CachePages(blocks, pages), channel, note, time.monotonic)
    scheduler.keeper = transfer.kept
    return transfer
