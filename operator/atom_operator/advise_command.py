"""`advise`: what to buy for a load and its targets, without a card or a network.

The flags, the search and the outputs are the engine's (`atom advise`), which this module only
calls; models of the hub come from the operator's catalogue. Prints.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

from atom.entrypoints.advise import add_advise_arguments
from atom_operator.plan.model_facts import catalogue_config, catalogue_sources
from atom_operator.plugin.gathering import RESOURCE
from atom_operator.plugin.kubectl import Kubectl
from atom_operator.plugin.output import width, wrapped

_ERROR = 2
# The engine's scheduler, which the search runs, computes with these.
_NEEDED = ("numpy", "xxhash")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `advise`."""
    add_advise_arguments(parser)
    parser.add_argument(
        "--from-cluster",
        action="store_true",
        help="correct the prediction by the measured steps of the cluster's AtomDeployments: "
        "of all namespaces, or of -n",
    )


def run(options: argparse.Namespace, kubectl: Kubectl) -> int:
    """Return 0 with an answer, 3 when nothing meets the targets, 2 for a question that cannot be
    answered. kubectl: asked only with --from-cluster. Raises KubectlError."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        return _refuse(
            f"the simulation needs {' and '.join(missing)}, which this installation lacks; install "
            "the extra advisor: pip install 'atom-platform[operator,advisor]'"
        )
    from atom.entrypoints.advise.command import run as advise
    from atom.errors import AtomError

    running = []
    if options.from_cluster:
        running = kubectl.items("get", RESOURCE, *([] if kubectl.namespace else ["-A"]))
    try:
        return advise(options, _config_of, running)
    except AtomError as error:
        return _refuse(str(error))


def _config_of(name: str) -> Mapping[str, Any]:
    """Return a model's config.json. Raises ConfigError if the catalogue has none."""
    from atom.errors import ConfigError

    source = f"hf://{name}"
    found = catalogue_config(source)
    if found is None:
        near = get_close_matches(source, catalogue_sources(), n=1, cutoff=0.8)
        meant = f"did you mean {near[0]}? Correct it, or" if near else "so"
        raise ConfigError(
            f"--model {source}: is not in the operator's catalogue; {meant} give the model's "
            "config.json as a file, or use atom advise, which reads it from the hub"
        )
    return found


def _refuse(message: str) -> int:
    for part in wrapped(f"error: {message}", width()):
        print(part, file=sys.stderr)
    return _ERROR
