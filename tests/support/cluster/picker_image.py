"""Endpoint pickers as images of the node, made from their projects' Go modules under the names of
the published ones: what the operator renders runs as it is.
"""

from __future__ import annotations

import os

import pytest

from atom_operator.integration_values import PICKER_IMAGES, PickerKind
from devcluster import target
from devcluster.errors import DevclusterError
from devcluster.images import archive, image_store
from devcluster.neighbours import endpoint_picker
from devcluster.programs import llm_d_router
from devcluster.programs.binaries import ensure_binaries

_PROGRAMS = {
    PickerKind.LLM_D: (llm_d_router.GROUP, llm_d_router.PICKER),
    PickerKind.INFERENCE_EXTENSION: (endpoint_picker.GROUP, "endpoint-picker"),
}


def load(kind: PickerKind) -> None:
    """Skips where its module cannot be had, and on a cluster of the user's own, whose images are
    not ours to replace."""
    chosen = target.resolve(os.environ)
    if not chosen.is_embedded:
        pytest.skip("images of pickers are loaded into the embedded cluster alone")
    group, name = _PROGRAMS[kind]
    try:
        program = ensure_binaries(chosen.settings, [group])[name]
    except DevclusterError as error:
        pytest.skip(f"the endpoint picker of {kind} cannot be built here: {error}")
    packed = chosen.settings.cache / "images" / f"{program.name}.tar"
    if not packed.exists():
        archive.pack_program(PICKER_IMAGES[kind], program, "epp", packed)
    image_store.load_once(chosen.settings, PICKER_IMAGES[kind], packed)
