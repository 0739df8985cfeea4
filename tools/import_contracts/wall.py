"""An import contract by place: everything below a root but the named places keeps out a library.

import-linter's own contracts name the modules that must not import, so a new module is outside the
wall until a list names it. This one names the modules that may: `.importlinter` declares each wall.
"""

from __future__ import annotations

from typing import Any

from grimp import ImportGraph
from importlinter.application import contract_utils, output
from importlinter.application.contract_utils import AlertLevel
from importlinter.domain import fields
from importlinter.domain.contract import Contract, ContractCheck


class ImportWall(Contract):
    """Nothing below `root` imports `forbidden`, except the packages and modules of `allowed`.

    - `chains`: an import through other modules counts, too.
    - `ignore_imports`: imports that do not count, each with its reason beside it.
    """

    type_name = "import_wall"

    root = fields.ModuleField()
    forbidden = fields.SetField(subfield=fields.StringField())
    allowed = fields.SetField(subfield=fields.ModuleField(), required=False)
    chains = fields.BooleanField(required=False, default=False)
    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Check every module of the graph; a place that does not exist breaks the contract."""
        values: Any = self
        ignored = list(values.ignore_imports or ())
        contract_utils.remove_ignored_imports(graph, ignored, AlertLevel.ERROR)
        root, allowed = values.root.name, {each.name for each in values.allowed or ()}
        missing = sorted(({root} | allowed) - graph.modules)
        inside = {name for name in graph.modules if _is_below(name, {root})}
        outside = {name for name in inside if not _is_below(name, allowed)}
        breaking = {
            library: sorted(outside & _importers(graph, library, chains=values.chains))
            for library in sorted(values.forbidden)
        }
        kept = not missing and not any(breaking.values())
        return ContractCheck(kept=kept, metadata={"breaking": breaking, "missing": missing})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each module that breaks the wall."""
        for place in check.metadata["missing"]:
            output.print_error(f"{place} does not exist; take it out of .importlinter")
        for library, modules in check.metadata["breaking"].items():
            for module in modules:
                output.print_error(f"{module} must not import {library}")


def _is_below(name: str, places: set[str]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def _importers(graph: ImportGraph, library: str, *, chains: bool) -> set[str]:
    """Return the modules that import a library or a module of it, directly or by a chain."""
    found: set[str] = set()
    for name in graph.modules:
        if _is_below(name, {library}):
            found |= graph.find_modules_that_directly_import(name)
            found |= graph.find_downstream_modules(name) if chains else set()
    return found
