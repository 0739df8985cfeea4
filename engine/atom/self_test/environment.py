"""Read a machine's facts for the engine: importable packages, variables, cards and tools.

This module only reads. A read that fails leaves its error in the place of its result.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module

from atom.utils.amd_smi import AmdSmiError, read_cards
from atom.utils.kfd_topology import read_nodes

# Packages that compute on a card, and AMD's library about cards.
_PACKAGES = ("torch", "triton", "aiter", "amdsmi")
_VARIABLES = (
    "ATOM_", "AITER_", "HIP_", "HSA_", "ROCR_", "NCCL_", "RCCL_", "MORI_", "TRITON_", "PYTORCH_",
    "GPU_ARCHS",
)  # fmt: skip
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_TOOLS = (("amd-smi", "static"), ("rocm-smi", "--showproductname", "--showmeminfo", "vram"))
_TOOL_SECONDS = 30


def imports() -> dict[str, str]:
    """Import each package; return its version, or the error."""
    told = {}
    for name in _PACKAGES:
        try:
            found = import_module(name)
            told[name] = f"imported {getattr(found, '__version__', '')}".strip()
        except Exception as error:  # a library below may lack anything
            told[name] = f"{type(error).__name__}: {error}"
    return told


def variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Collect the variables that kernels and runtimes read, except any that may be secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_VARIABLES) and not any(word in name for word in _SECRET)
    }


def cards_and_tools() -> dict[str, str]:
    """Return the reports of amdsmi, of the driver's topology and of the driver's own tools."""
    told = {"kfd": json.dumps([asdict(node) for node in read_nodes()], indent=2)}
    try:
        told["amdsmi"] = json.dumps([asdict(card) for card in read_cards()], indent=2)
    except AmdSmiError as error:
        told["amdsmi"] = str(error)
    for command in _TOOLS:
        if shutil.which(command[0]) is not None:
            try:
                run = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_SECONDS)
                told[" ".join(command)] = run.stdout + run.stderr
            except (OSError, subprocess.TimeoutExpired) as error:
                told[" ".join(command)] = str(error)
    return told
