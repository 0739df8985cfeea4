"""To collect the tests costs little: the dear libraries are imported by the tests that use them.

`import transformers` is cheap and `from transformers import AutoModelForCausalLM` takes seconds;
ruff cannot tell them apart, and refuses the others (`banned-module-level-imports`).
"""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_test_imports_names_of_transformers_when_it_is_imported() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{statement.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        for statement in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(statement, ast.ImportFrom) and statement.module == "transformers"
    ]
    assert not found, "write `import transformers`, and `transformers.NAME` where it is used"
