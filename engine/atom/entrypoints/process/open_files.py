"""How many files and connections this process may have open at once.

Many systems start programs with a soft limit of 1,024, for the sake of old ones that cannot count
further; past it connections are reset before anybody could answer them. Called by programs that
open a connection per request.
"""

from __future__ import annotations

import resource

ENOUGH = 65_536


def allow_many_open_files() -> int:
    """Raise the soft limit as far as the hard one lets us; the limit from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = ENOUGH if hard == unlimited else min(ENOUGH, hard)
    if soft == unlimited or soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
