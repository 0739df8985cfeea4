"""Write the reference pages of the documentation from the code that they speak of.

python -m tools.generate_reference          writes
python -m tools.generate_reference --check  says which pages are out of date (make lint)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.reference import (
    atomdeployment,
    chart,
    conditions,
    flags,
    http_errors,
    metrics,
    models,
    other_flags,
    request_fields,
)

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "models.md": models.page,
    "flags.md": flags.page,
    "flags-of-other-servers.md": other_flags.page,
    "request-fields.md": request_fields.page,
    "errors.md": http_errors.page,
    "metrics.md": metrics.page,
    "atomdeployment.md": atomdeployment.page,
    "atomprofile.md": atomdeployment.profile_page,
    "conditions.md": conditions.page,
    "chart.md": chart.page,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a page is out of date")
    check = parser.parse_args(arguments).check
    texts = {FOLDER / name: page() for name, page in PAGES.items()}
    stale = [path for path, text in texts.items() if not _is_current(path, text)]
    for path in stale:
        if check:
            print(f"docs/reference/{path.name} is out of date: run make generate")
        else:
            path.write_text(texts[path], encoding="utf-8")
    return 1 if check and stale else 0


def _is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
