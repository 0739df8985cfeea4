"""Measure the rates of this machine's device, or fit those of published figures, into a table.

    python -m benchmarks.step_rates --device cpu --output cpu.json
    python -m benchmarks.step_rates --figures FILE --card H200 --output h200.json

Engines of some shapes with random weights run one after the other in this process. Prints each
shape, then the error of the table, which is that of each shape as predicted without it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from atom.errors import AtomError
from atom.sizing.cards import CARDS
from benchmarks.step_rates.figures import Figures
from benchmarks.step_rates.fit import fit
from benchmarks.step_rates.measure import DEFAULT_SHAPES, measure_rates
from benchmarks.step_rates.rates_table import write_table


def main() -> int:
    parser = argparse.ArgumentParser(description="Rates of steps, as a table for atom advise.")
    parser.add_argument("--output", type=Path, required=True, help="the table, a JSON file")
    parser.add_argument("--shapes", nargs="+", default=None, help="shapes to run; three or more")
    parser.add_argument("--device", default=None, help="default: the GPU if there is one")
    parser.add_argument("--figures", type=Path, help="published figures instead of a device")
    parser.add_argument("--card", default="H200", help="the card of --figures")
    args = parser.parse_args()
    try:
        if args.figures is None:
            measure_rates(args.output, args.shapes or DEFAULT_SHAPES, args.device)
        else:
            found, card = Figures.read(args.figures), CARDS[args.card]
            write_table(args.output, card, fit(found.steps, card), found.steps, found.source)
    except (AtomError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
