"""Run a text of Python as the main program: `python -m tests.support.preloaded.script TEXT WORD…`.

It runs an example of a guide as its reader does, in a copy that has the engine's imports; another
test of the guide imports them anew.
"""

from __future__ import annotations

import sys


def main() -> None:
    _, text, *words = sys.argv
    sys.argv = ["-c", *words]
    names = sys.modules["__main__"].__dict__
    names["__name__"] = "__main__"
    exec(compile(text, "<example>", "exec"), names)


if __name__ == "__main__":
    main()
