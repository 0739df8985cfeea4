"""An operation of the interface that no test of the parity matrix names fails the suite."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from atom.model_ops.backends.op_names import FUSED_OPS, OPS

_SOURCES = {
    path.name: path.read_text(encoding="utf-8")
    for path in (Path(__file__).parent / "parity").rglob("test_*.py")
}


@pytest.mark.parametrize("op", [*OPS, *FUSED_OPS])
def test_the_parity_matrix_has_the_operation(op: str) -> None:
    named = re.compile(rf'["\']{op}["\']|\bops\.{op}\(')
    assert [name for name, text in _SOURCES.items() if named.search(text)]
