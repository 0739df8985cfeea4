"""Write the reference pages of the documentation from the code that they speak of.

    python -m tools.generate_reference

A test holds the pages against this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tools.reference import (
    atomdeployment,
    chart,
    conditions,
    flags,
    http_errors,
    metrics,
    other_flags,
    request_fields,
)

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "flags.md": flags.page,
    "flags-of-other-servers.md": other_flags.page,
    "request-fields.md": request_fields.page,
    "errors.md": http_errors.page,
    "metrics.md": metrics.page,
    "atomdeployment.md": atomdeployment.page,
    "conditions.md": conditions.page,
    "chart.md": chart.page,
}


def main() -> None:
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
