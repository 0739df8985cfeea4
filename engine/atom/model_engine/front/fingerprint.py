"""The fingerprint of reproducible answers: everything that decides their bits besides the request.

Parts are divided by slashes, so that two fingerprints show where they differ. In the default mode
it is the weights' version alone, since nothing else is promised.
"""

from __future__ import annotations

import hashlib

from atom.config import Config
from atom.model_engine.wire.engine_protocol import EngineReport


class Fingerprint:
    """Composes the fingerprint of a server's answers, once for each version of its weights."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._composed: dict[str, str] = {}  # of the latest version alone

    def of(self, weights_version: str, report: EngineReport | None) -> str:
        """Return that of answers by these weights: weights, engine, kernels, options."""
        if not self._config.execution.reproducible or report is None:
            return weights_version
        if weights_version not in self._composed:
            self._composed = {weights_version: _compose(weights_version, self._config, report)}
        return self._composed[weights_version]


def _compose(weights_version: str, config: Config, report: EngineReport) -> str:
    software = repr((report.device, sorted(report.versions.items())))
    kernels = "+".join(sorted(set(report.backends.values())))
    options = "-".join(
        (
            report.dtype,
            report.kv_cache_dtype,
            f"tp{report.tensor_parallel_size}",
            f"seed{config.seed}",
            _digest(_read_of_checkpoint(config)),
        )
    )
    parts = (weights_version, f"atom-{report.version}", f"{kernels}-{_digest(software)}", options)
    return "/".join(parts)


def _read_of_checkpoint(config: Config) -> str:
    """Return the checkpoint's defaults that decide answers: the context, the end tokens and the
    sampling defaults."""
    model = config.model
    return repr((model.max_model_len, model.eos_token_ids, model.generation))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
