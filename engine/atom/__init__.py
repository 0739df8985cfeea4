"""ATOM (AiTer Optimized Model): an LLM inference engine for AMD Instinct GPUs.

Public names are resolved on first use, so that importing a torch-free part (`atom.config`,
`atom.sizing`, the command line) never pays for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atom.model_engine.async_llm_engine import AsyncLLMEngine
    from atom.model_engine.llm_engine import LLMEngine
    from atom.sampling_params import SamplingParams

__version__ = "0.1.0"

_PUBLIC = {
    "LLMEngine": "atom.model_engine.llm_engine",
    "AsyncLLMEngine": "atom.model_engine.async_llm_engine",
    "SamplingParams": "atom.sampling_params",
}
__all__ = ["AsyncLLMEngine", "LLMEngine", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    # `from atom import config` asks here before it tries the sub-module: every name that is not
    # ours must raise AttributeError, or each such import would import the whole engine.
    if name not in _PUBLIC:
        raise AttributeError(f"module 'atom' has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(_PUBLIC[name]), name)
    except ModuleNotFoundError as error:
        from atom.missing_packages import missing_package

        lacking = missing_package(error, f"atom.{name}")
        if lacking is None:
            raise
        raise ImportError(lacking, name=error.name) from None
