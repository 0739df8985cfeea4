"""The command line: its grammar, and errors as one line.

Exit codes: 0 done, 1 refused or failed (one line on standard error), 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from devcluster import cluster, commands, preflight
from devcluster.errors import DevclusterError
from devcluster.images import project_images
from devcluster.neighbours import registry
from devcluster.settings import Settings, read_settings

Run = Callable[[argparse.Namespace, Settings], int]
Add = Callable[[str, Run, str], argparse.ArgumentParser]


def main(arguments: Sequence[str]) -> int:
    parsed = make_parser().parse_args(arguments)
    preflight.complete_path()
    run: Run = parsed.run
    try:
        return run(parsed, read_settings(os.environ))
    except DevclusterError as error:
        print(f"devcluster: {error}", file=sys.stderr)
        return 1


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m devcluster", description="A real single-node Kubernetes without Docker."
    )
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Run, help_text: str) -> argparse.ArgumentParser:
        added = subparsers.add_parser(name, help=help_text, description=help_text)
        added.set_defaults(run=run)
        return added

    _add_cluster_commands(add)
    _add_image_commands(add)
    _add_fake_amd(add)
    return parser


def _add_cluster_commands(add: Add) -> None:
    up = add("up", commands.run_up, "Start the cluster, or repair it; builds what is missing.")
    fakes = "nodes with AMD GPUs: the real one first, then created ones"
    up.add_argument("--fake-amd-nodes", metavar="N[:GPUS]", default="0", help=fakes)
    up.add_argument("--product", default="MI300X", help="their AMD product (default MI300X)")
    up.add_argument(
        "--with",
        dest="neighbours",
        metavar="NAMES",
        default="",
        help=f"other projects' controllers, comma-separated: {', '.join(registry.NEIGHBOURS)}",
    )
    add("down", commands.run_down, "End the cluster and remove everything but the cache.")
    status = add("status", commands.run_status, "Show components, nodes and images.")
    status.add_argument("--json", action="store_true", help="for programs")
    env_help = f"Print the variables of the cluster for a shell: {commands.FOR_THIS_SHELL}"
    env = add("env", commands.run_env, env_help)
    env.add_argument("--shell", action="store_true", help="as export lines (the only form)")
    add("build", commands.run_build, "Build and cache every program without starting anything.")
    inside = "Run a program of this machine inside the cluster's network."
    execute = add("exec", commands.run_exec, inside)
    execute.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- PROGRAM …")


def _add_image_commands(add: Add) -> None:
    load_help = "import it into the cluster"
    load = add("load-image", commands.run_load, "Import image archives into the cluster.")
    load.add_argument("archives", nargs="+", type=Path, metavar="FILE.tar")
    build = add("build-image", commands.run_build_image, "Build a Dockerfile without a registry.")
    build.add_argument("context", type=Path, metavar="CONTEXT")
    build.add_argument("-f", "--file", type=Path, required=True, metavar="DOCKERFILE")
    build.add_argument("-t", "--tag", required=True, metavar="NAME")
    build.add_argument("--target", metavar="STAGE")
    build.add_argument("--build-arg", action="append", default=[], metavar="K=V")
    build.add_argument("--load", action="store_true", help=load_help)
    project = add("images", commands.run_images, "Build the project's own images.")
    names = f"comma-separated: {', '.join(project_images.NAMES)}"
    project.add_argument("--only", metavar="NAMES", help=names)
    project.add_argument("--load", action="store_true", help=load_help)


def _add_fake_amd(add: Add) -> None:
    help_text = "Give a node AMD GPUs, or create a node that exists in the API only."
    fake = add("fake-amd", commands.run_fake_amd, help_text)
    fake.add_argument("--node", default=cluster.NODE_NAME, help=f"default {cluster.NODE_NAME}")
    fake.add_argument("--gpus", type=int, default=8, help="default 8; 0 takes them away")
    fake.add_argument("--product", default="MI300X", help="default MI300X")
    fake.add_argument("--create", action="store_true", help="make the node if there is none")
