"""`python -m tools.demo up|down`, by which make runs the demo."""

from __future__ import annotations

import argparse
import sys

from devcluster.errors import DevclusterError
from tools.demo.steps import down, up
from tools.kube import KubeError
from tools.on_cluster import ATOM_TINY, DEMO_MODELS
from tools.wheel_model import FetchError


def main() -> int:
    parser = argparse.ArgumentParser(description="The demo: make demo, make demo-down.")
    parser.add_argument("action", choices=("up", "down"))
    parser.add_argument("--model", choices=tuple(DEMO_MODELS), default=ATOM_TINY.name)
    options = parser.parse_args()
    try:
        up(DEMO_MODELS[options.model]) if options.action == "up" else down()
    except (KubeError, DevclusterError, FetchError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; run it again to go on, `make demo-down` to clean up", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
