"""Random search in tests: fixed seeds in the daily run, fresh ones and more examples in
`make test-long`, which sets ATOM_TEST_SEEDS=fresh.

What a long run finds becomes an example of its test, so that the daily one has it too.
"""

from __future__ import annotations

import os

from hypothesis.internal.conjecture import providers

FRESH_SEEDS = os.environ.get("ATOM_TEST_SEEDS") == "fresh"
_MORE = 50


def examples(daily: int, *, more: int = _MORE) -> int:
    """Return the number of examples of a property. more: times as many in the long run."""
    return daily * more if FRESH_SEEDS else daily


def draw_the_same_everywhere() -> None:
    """Keep hypothesis from drawing constants out of the modules that happen to be imported.

    A fixed seed is not enough for equal examples: one draw of twenty is a constant of any module
    of the checkout in sys.modules, so they change with what else is collected, with the folder
    that the checkout is in, and with any edit of any file. There is no setting for it.
    """
    if not hasattr(providers, "_get_local_constants"):  # an upgrade has to look here
        raise AttributeError("hypothesis takes constants of modules from elsewhere now")
    nothing = providers.Constants()
    providers._get_local_constants = lambda: nothing
