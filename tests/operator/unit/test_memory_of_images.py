"""The decoded images of requests are part of a pod's memory: twice spec.engine.imageMemoryMib."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.children.engine_container import engine_container
from atom_operator.constants import GPU_HOST_GIB, Reason
from atom_operator.domain import FactsLookup, Owner, Plan
from atom_operator.plan.capacity import host_memory_bytes
from atom_operator.reconcile.planning import Surroundings, plan_spec
from atom_operator.validation.defaulting import resolve_options
from tests.support.operator.builders_operator import IMAGES, KEY, parsed, plan

EYES = {"source": "path:///models/atom-tiny-eyes"}
TEXT = {"source": "hf://Qwen/Qwen3-8B"}
GPU = {"type": "amd", "product": "MI300X"}


@pytest.mark.parametrize(
    ("model", "engine", "gib"),
    [
        (EYES, {}, 8),
        (EYES, {"imageMemoryMib": 64}, 1),
        (EYES, {"imageMemoryMib": 16384}, 32),
        (EYES, {"maxImages": 0, "imageMemoryMib": 16384}, 0),
        (EYES, {"extraArgs": ["--language-model-only"]}, 0),
        (EYES, {"reproducible": True}, 0),
        (TEXT, {"imageMemoryMib": 16384}, 0),
    ],
)
def test_a_gpu_pod_requests_it(model: Any, engine: dict[str, Any], gib: int) -> None:
    made = plan(model=model, accelerator=GPU, engine=engine)
    requests = engine_container(made)["resources"]["requests"]
    assert requests["memory"] == f"{GPU_HOST_GIB + gib}Gi"
    stated = engine.get("imageMemoryMib")
    flag = [] if stated is None else ["--image-memory-mib", str(stated)]
    args = engine_container(made)["args"]
    at = args.index(flag[0]) if flag else 0
    assert args[at : at + len(flag)] == flag
    assert bool(flag) == ("--image-memory-mib" in args)


@pytest.mark.parametrize("stated", [None, 64, 8192])
def test_a_model_whose_shape_the_spec_does_not_settle_requests_the_stated_size(
    stated: int | None,
) -> None:
    """Pods stay as they are if its shape becomes known."""
    lookup = FactsLookup(
        plan(model=EYES, accelerator=GPU).model.facts, Reason.FITS, "", pinned=False
    )
    engine = {} if stated is None else {"imageMemoryMib": stated}
    options = resolve_options(parsed(model=TEXT, accelerator=GPU, engine=engine), image="i")
    expected = 0 if stated is None else 2 * stated << 20
    device = plan(model=EYES, accelerator=GPU).accelerator
    assert host_memory_bytes(lookup, options, device) == expected
    unknown = FactsLookup(None, Reason.MODEL_NOT_SIZED, "", pinned=True)
    assert host_memory_bytes(unknown, options, device) == expected


@pytest.mark.parametrize(
    ("engine", "fits"),
    [
        ({}, True),
        ({"imageMemoryMib": 204}, True),
        ({"imageMemoryMib": 205}, False),
        ({"imageMemoryMib": 1024, "gpuMemoryUtilization": 0.5}, True),
        ({"imageMemoryMib": 1025, "gpuMemoryUtilization": 0.5}, False),
    ],
)
def test_a_cpu_pod_has_room_for_it_beside_weights_and_cache(
    engine: dict[str, Any], fits: bool
) -> None:
    spec = parsed(model=EYES, accelerator={"type": "cpu", "memory": "4Gi"}, engine=engine)
    found = plan_spec(Owner(KEY, "uid"), spec, Surroundings(IMAGES))
    if fits:
        assert isinstance(found, Plan), found
        resources = engine_container(found)["resources"]
        assert resources["limits"]["memory"] == "4Gi"
        return
    assert isinstance(found, tuple)
    (problem,) = found
    assert problem.field == "spec.engine.imageMemoryMib"
    assert "of the pod's 4 GiB" in problem.message
    assert "spec.engine.gpuMemoryUtilization" in problem.message


def test_it_is_refused_among_extra_arguments() -> None:
    spec = parsed(model=EYES, engine={"extraArgs": ["--image-memory-mib=64"]})
    found = plan_spec(Owner(KEY, "uid"), spec, Surroundings(IMAGES))
    assert isinstance(found, tuple)
    assert "use spec.engine.imageMemoryMib" in found[0].message
