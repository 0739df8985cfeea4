"""The fingerprint of reproducible answers: what decides their bits beside the request itself.

Parts are divided by slashes, so that two fingerprints tell where they differ. In the default mode
it is the weights' version alone, since nothing else is promised.
"""

from __future__ import annotations

import hashlib

from atom.config import Config
from atom.model_engine.wire.engine_protocol import EngineReport


def fingerprint(weights_version: str, config: Config, report: EngineReport | None) -> str:
    """Compose the fingerprint of answers by these weights: weights, engine, kernels, options."""
    if not config.reproducible or report is None:
        return weights_version
    software = repr((report.device, sorted(report.versions.items())))
    kernels = "+".join(sorted(set(report.backends.values())))
    parallel = f"tp{report.tensor_parallel_size}"
    return "/".join(
        (
            weights_version,
            f"atom-{report.version}",
            f"{kernels}-{hashlib.sha256(software.encode()).hexdigest()[:8]}",
            f"{report.dtype}-{report.kv_cache_dtype}-{parallel}-seed{config.seed}",
        )
    )
