"""Build the store of page files of an engine core that has started."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from atom.config import Config
from atom.model_engine.front.loras.adapter_digests import adapter_digest
from atom.model_engine.front.weights_update import TELLS_NOTHING, version_of, weights_version
from atom.model_engine.kv_disk.disk_faults import DiskFaults
from atom.model_engine.kv_disk.disk_folder import DiskFolder, check_folder
from atom.model_engine.kv_disk.file_store import FileStore
from atom.model_engine.kv_transfer.cache_layout_digest import layout_digest, layout_facts
from atom.model_engine.page_moves import HostPageMover
from atom.model_engine.wire.engine_protocol import EngineReport
from atom.sizing.host_tier import GIB


def build_store(
    config: Config, report: EngineReport, mover: HostPageMover | None
) -> FileStore | None:
    """Open the folder of page files; None without --kv-disk-dir. mover: of the host's pages. Raises
    `ConfigError` for a folder that cannot be used."""
    tier = config.tier
    if tier.disk_dir is None or tier.disk_size is None or mover is None:
        return None
    root = Path(tier.disk_dir)
    check_folder(root)
    weights = version_of(config.model)
    if config.model.load_dummy:
        weights = f"random-{uuid.uuid4().hex}"  # of no other process
    layout_of = partial(disk_layout, config, report, mover.tensors)
    folder = DiskFolder(root, layout_of(weights), int(tier.disk_size * GIB), time.time)
    store = FileStore(
        folder,
        mover.rows,
        DiskFaults(str(root)),
        layout_of=lambda path: layout_of(weights_version(Path(path))),
    )
    for number, module in enumerate(config.lora.modules if config.lora else (), start=1):
        store.names.note_adapter(number, adapter_digest(module.folder or module.path))
    return store


def disk_layout(config: Config, report: EngineReport, tensors: Sequence[str], weights: str) -> str:
    """Return the digest of all that decides the bytes of a page besides tokens and adapter, 32
    hexadecimal digits. The number of ranks is no part of it: a page has the heads of all."""
    draft = "" if config.draft is None else version_of(config.draft)
    drafts = None if config.speculative is None else config.speculative.method
    facts = {
        **layout_facts(config, report, tensors, weights),
        "config": _digest_of(config.model.hf_config),
        "draft": f"{drafts}:{draft}",
    }
    return layout_digest(facts)


def _digest_of(hf_config: dict[str, object]) -> str:
    """Return a digest of the fields of a config.json that decide the computation."""
    told = {key: value for key, value in hf_config.items() if key not in TELLS_NOTHING}
    encoded = msgspec.json.encode(told, enc_hook=str, order="deterministic")
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()
