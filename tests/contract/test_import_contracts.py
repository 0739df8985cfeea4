"""Every import contract is broken by an import that it forbids: none of them is empty.

The graph of imports is built once; a probe is an edge that is added to it and taken away again. The
walls by place are probed in every package below their root.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter import configuration
from importlinter.api import read_configuration
from importlinter.application.use_cases import _get_built_in_contract_types
from importlinter.domain.contract import Contract
from importlinter.domain.imports import Module

from tools.import_contracts.wall import ImportWall

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = "atom.model_ops.backends"
# Backends of the other ones' kernels, and whose.
MADE_OF = {
    "batch_invariant": {"triton_ops"},
    "batch_invariant_cpu": {"native_cpu", "torch_cpu", "torch_ref"},
}
# A contract of layers is also broken by a module that stands in none: see the test of those.
PROBES: dict[str, list[tuple[str, str]]] = {
    "programs": [("atom.sizing.kv_budget", "atom_operator.constants")],
    "left-out": [
        ("atom.models.registry", "atom_nvidia"),
        ("atom_operator.plan.plan", "atom_nvidia"),
    ],
    "shared": [],  # every package of the engine but one: see the test of the operator's allow-list
    "operator-layers": [
        ("atom_operator.domain.plan", "atom_operator.plan.rollouts.rollout"),
        ("atom_operator.constants", "atom_operator.reconcile.reconciler"),
    ],
    "reconcile-layers": [("atom_operator.reconcile.planning", "atom_operator.reconcile.decider")],
    "operator-pure": [
        ("atom_operator.plan.rollouts.rollout", "asyncio"),
        ("atom_operator.status.rollup", "atom_operator.cluster.client"),
    ],
    "engine-layers": [
        ("atom.models.registry", "atom.model_engine.scheduler"),
        ("atom.errors", "atom.config"),
    ],
    "core-layers": [("atom.model_engine.scheduler", "atom.model_engine.executor")],
    "front": [("atom.model_engine.front.admission", "atom.model_engine.scheduler")],
    "runner": [("atom.model_engine.runner.step_runner", "atom.model_engine.schedule")],
    "runner-layers": [("atom.model_engine.runner.slots", "atom.model_engine.runner.speculation")],
    "entrypoint-layers": [("atom.entrypoints.flags", "atom.entrypoints.api_server")],
    "circles": [("atom.errors", "atom.config")],
    # A wall is probed in every package: see their tests.
    "torch-wall": [("atom.model_engine.scheduler", "atom.model_engine.runner.step_runner")],
    "triton-wall": [],
    "aiter-wall": [],
    "backends-wall": [],
    "grammar-wall": [],
    "pillow-wall": [],
    "uvicorn-wall": [],
    "cluster-wall": [],
    "kubernetes-wall": [],
    "kopf-wall": [],
    "torch-in-operator-wall": [],
    # Of these every pair of backends: see their test.
    "backends": [],
    "batch-invariant": [],
    "batch-invariant-cpu": [],
    "made-of-backends": [],
}
WALLS = [name for name in PROBES if name.endswith("-wall")]


class Walls:
    """The contracts of the repository and the graph that they judge."""

    def __init__(self) -> None:
        configuration.configure()
        options = read_configuration(str(ROOT / ".importlinter"))
        kinds: dict[str, Any] = dict(_get_built_in_contract_types()) | {"import_wall": ImportWall}
        session = options["session_options"]
        self.graph = grimp.build_graph(
            *session["root_packages"], include_external_packages=True, cache_dir=None
        )
        self.contracts: dict[str, Contract] = {
            found["id"]: kinds[found["type"]](found["name"], session, _without_id(found))
            for found in options["contracts_options"]
        }

    def keeps(self, contract: str) -> bool:
        # A check takes away what it ignores.
        return bool(self.contracts[contract].check(deepcopy(self.graph), verbose=False).kept)

    def wall(self, name: str) -> ImportWall:
        found = self.contracts[name]
        assert isinstance(found, ImportWall)
        return found

    def places(self, wall: ImportWall) -> tuple[list[str], list[str]]:
        """One module of every package below the wall's root: those that it stops, and those that it
        lets through."""
        root, allowed = _names(wall, "root").pop(), _names(wall, "allowed")
        first: dict[tuple[str, bool], str] = {}
        for name in sorted(self.graph.modules):
            if name.startswith(f"{root}.") and not self.graph.find_children(name):
                passes = any(f"{name}.".startswith(f"{place}.") for place in allowed)
                first.setdefault((name.rpartition(".")[0], passes), name)
        stopped = [name for (_, passes), name in first.items() if not passes]
        return stopped, [name for (_, passes), name in first.items() if passes]

    @contextmanager
    def importing(self, importer: str, imported: str) -> Iterator[None]:
        """An import that is not in the sources, and is forgotten afterwards."""
        known = {importer, imported} <= self.graph.modules
        assert known, f"no module {importer} or {imported}: the probe is out of date"
        assert not self.graph.direct_import_exists(importer=importer, imported=imported)
        self.graph.add_import(importer=importer, imported=imported)
        try:
            yield
        finally:
            self.graph.remove_import(importer=importer, imported=imported)


def _names(wall: ImportWall, field: str) -> set[str]:
    """The modules or libraries that a field of a wall names."""
    value: Any = getattr(wall, field) or ()
    return {str(getattr(each, "name", each)) for each in (value if field != "root" else (value,))}


def _without_id(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in {"id", "name", "type"}}


@pytest.fixture(scope="module")
def walls() -> Walls:
    return Walls()


def test_every_contract_has_a_probe(walls: Walls) -> None:
    assert set(PROBES) == set(walls.contracts)
    assert [name for name in walls.contracts if not walls.keeps(name)] == []


@pytest.mark.parametrize(
    ("contract", "importer", "imported"),
    [(contract, *probe) for contract, probes in PROBES.items() for probe in probes],
)
def test_a_contract_is_broken_by_what_it_forbids(
    walls: Walls, contract: str, importer: str, imported: str
) -> None:
    with walls.importing(importer, imported):
        assert not walls.keeps(contract)
    assert walls.keeps(contract)


@pytest.mark.parametrize("name", WALLS)
def test_a_wall_stops_an_import_in_every_package_below_its_root(walls: Walls, name: str) -> None:
    wall = walls.wall(name)
    stopped, let_through = walls.places(wall)
    assert len(stopped) >= 15
    libraries = sorted(_names(wall, "forbidden"))
    for library in libraries:
        if library not in walls.graph.modules:
            walls.graph.add_module(library, is_squashed=True)
    # Through chains, a module that may import torch may stand below one that may not.
    probed = stopped if wall.chains else [*stopped, *let_through]
    for module, library in zip(probed, itertools.cycle(libraries), strict=False):
        if walls.graph.direct_import_exists(importer=module, imported=library):
            continue
        with walls.importing(module, library):
            assert walls.keeps(name) is (module in let_through), f"{module} imports {library}"


@pytest.mark.parametrize("name", WALLS)
def test_a_wall_holds_for_a_module_of_tomorrow(walls: Walls, name: str) -> None:
    """The contract names who may import: a module that it does not know may not."""
    wall = walls.wall(name)
    root, library = _names(wall, "root").pop(), min(_names(wall, "forbidden"))
    newcomer = f"{root}.newcomer"
    walls.graph.add_module(newcomer)
    if library not in walls.graph.modules:
        walls.graph.add_module(library, is_squashed=True)
    with walls.importing(newcomer, library):
        assert not walls.keeps(name)
    walls.graph.remove_module(newcomer)
    assert walls.keeps(name)


def test_an_allowed_place_that_is_gone_breaks_its_wall(walls: Walls) -> None:
    wall = deepcopy(walls.wall("aiter-wall"))
    wall.allowed = {Module("atom.model_ops.backends.gone_ops")}  # type: ignore[assignment]
    found = wall.check(walls.graph, verbose=False)
    assert not found.kept
    assert found.metadata["missing"] == ["atom.model_ops.backends.gone_ops"]


@pytest.mark.parametrize("name", WALLS)
def test_no_library_is_imported_by_its_name_beyond_its_wall(walls: Walls, name: str) -> None:
    """`import_module("library")` is an import that the graph does not have."""
    wall = walls.wall(name)
    root, libraries = _names(wall, "root").pop(), _names(wall, "forbidden")
    allowed = _names(wall, "allowed")
    beyond = {
        module: library
        for module, library in _imported_by_name(root)
        if any(f"{library}.".startswith(f"{each}.") for each in libraries)
        and not any(f"{module}.".startswith(f"{place}.") for place in allowed)
    }
    assert beyond == {}


@cache
def _imported_by_name(root: str) -> tuple[tuple[str, str], ...]:
    """Every module of a program that imports one by its name, with that name."""
    folder = ROOT / ("engine" if root == "atom" else "operator")
    return tuple(
        (".".join(path.relative_to(folder).with_suffix("").parts), call.args[0].value)
        for path in sorted((folder / root).rglob("*.py"))
        if "import_module(" in (source := path.read_text(encoding="utf-8"))
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).rpartition(".")[2] == "import_module"
        and isinstance(call.args[0], ast.Constant)
    )


def test_the_wall_of_backends_has_all_of_them(walls: Walls) -> None:
    packages = {
        child for child in walls.graph.find_children(BACKENDS) if walls.graph.find_children(child)
    }
    assert _names(walls.wall("backends-wall"), "forbidden") == packages


def test_the_operator_may_take_one_package_of_the_engine(walls: Walls) -> None:
    """An allow-list: what is added to the engine tomorrow is forbidden, too."""
    packages = walls.graph.find_children("atom")
    assert {"atom.sizing", "atom.speculation", "atom.answer_parsing"} <= packages
    for package in sorted(packages):
        with walls.importing("atom_operator.reconcile.reconciler", package):
            assert walls.keeps("shared") is (package == "atom.sizing"), package


def test_every_backend_is_independent_of_every_other_but_those_it_is_made_of(walls: Walls) -> None:
    packages = [
        child for child in walls.graph.find_children(BACKENDS) if walls.graph.find_children(child)
    ]
    assert len(packages) >= 5
    contracts = ("backends", "batch-invariant", "batch-invariant-cpu", "made-of-backends")
    for one, other in itertools.permutations(packages, 2):
        if other.rpartition(".")[2] in MADE_OF.get(one.rpartition(".")[2], ()):
            continue
        inside = next(iter(walls.graph.find_children(one)))
        with walls.importing(inside, other):
            assert not all(map(walls.keeps, contracts)), f"{one} may import {other}"


@pytest.mark.parametrize(
    ("contract", "container"),
    [
        ("operator-layers", "atom_operator"),
        ("reconcile-layers", "atom_operator.reconcile"),
        ("engine-layers", "atom"),
        ("core-layers", "atom.model_engine"),
        ("runner-layers", "atom.model_engine.runner"),
        ("entrypoint-layers", "atom.entrypoints"),
    ],
)
def test_a_module_that_stands_in_no_layer_is_refused(
    walls: Walls, contract: str, container: str
) -> None:
    walls.graph.add_module(f"{container}.newcomer")
    assert not walls.keeps(contract)
    walls.graph.remove_module(f"{container}.newcomer")
    assert walls.keeps(contract)
