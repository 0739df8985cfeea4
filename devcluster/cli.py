"""The command line: parses, takes the lock where two invocations must not meet, prints errors as
one line.

Exit codes: 0 done, 1 refused or failed (one line on standard error), 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from devcluster import (
    binaries,
    cluster,
    health,
    images,
    network,
    node,
    nodes,
    packages,
    preflight,
    project_images,
    status,
    target,
    teardown,
)
from devcluster.api import Api
from devcluster.build_image import BuildRequest, build_image
from devcluster.errors import DevclusterError
from devcluster.lock import exclusive
from devcluster.progress import elapsed_text, say
from devcluster.settings import Settings, read_settings

FOR_THIS_SHELL = 'eval "$(python -m devcluster env --shell)"'


def main(arguments: Sequence[str]) -> int:
    parsed = make_parser().parse_args(arguments)
    preflight.complete_path()
    run: Callable[[argparse.Namespace, Settings], int] = parsed.run
    try:
        return run(parsed, read_settings(os.environ))
    except DevclusterError as error:
        print(f"devcluster: {error}", file=sys.stderr)
        return 1


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m devcluster", description="A real single-node Kubernetes without Docker."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[argparse.Namespace, Settings], int], help_text: str
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help_text, description=help_text)
        added.set_defaults(run=run)
        return added

    up = command("up", run_up, "Start the cluster, or repair it; builds what is missing.")
    up.add_argument(
        "--fake-amd-nodes",
        metavar="N[:GPUS]",
        default="0",
        help="nodes with AMD GPUs: the real one first, then created ones",
    )
    up.add_argument("--product", default="MI300X", help="their AMD product (default MI300X)")
    command("down", run_down, "End the cluster and remove everything but the cache.")
    shown = command("status", run_status, "Show components, nodes and images.")
    shown.add_argument("--json", action="store_true", help="for programs")
    command(
        "env",
        run_env,
        f"Print the variables of the cluster for a shell: {FOR_THIS_SHELL}",
    ).add_argument(
        "--shell", action="store_true", help="as export lines (the default and only form)"
    )
    command("build", run_build, "Build and cache every program without starting anything.")
    command("load-image", run_load, "Import image archives into the cluster.").add_argument(
        "archives", nargs="+", type=Path, metavar="FILE.tar"
    )
    _add_build_image(
        command("build-image", run_build_image, "Build a Dockerfile without a registry.")
    )
    project = command("images", run_images, "Build the project's own images.")
    project.add_argument(
        "--only", metavar="NAMES", help=f"comma-separated: {', '.join(project_images.NAMES)}"
    )
    project.add_argument("--load", action="store_true", help="import them into the cluster")
    fake = command(
        "fake-amd",
        run_fake_amd,
        "Give a node AMD GPUs, or create a node that exists in the API only.",
    )
    fake.add_argument("--node", default=cluster.NODE_NAME, help=f"default {cluster.NODE_NAME}")
    fake.add_argument("--gpus", type=int, default=8, help="default 8; 0 takes them away")
    fake.add_argument("--product", default="MI300X", help="default MI300X")
    fake.add_argument("--create", action="store_true", help="make the node if there is none")
    inside = command(
        "exec", run_exec, "Run a program of this machine inside the cluster's network."
    )
    inside.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- PROGRAM …")
    return parser


def _add_build_image(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("context", type=Path, metavar="CONTEXT")
    parser.add_argument("-f", "--file", type=Path, required=True, metavar="DOCKERFILE")
    parser.add_argument("-t", "--tag", required=True, metavar="NAME")
    parser.add_argument("--target", metavar="STAGE")
    parser.add_argument("--build-arg", action="append", default=[], metavar="K=V")
    parser.add_argument("--load", action="store_true", help="import it into the cluster")


def run_up(parsed: argparse.Namespace, settings: Settings) -> int:
    refuse_current("up")
    preflight.require_machine()
    started = time.monotonic()
    with exclusive(settings.lock_file, "cluster"):
        cluster.up(settings)
        fakes = nodes.parse_count(parsed.fake_amd_nodes, cluster.NODE_NAME, parsed.product)
        again = nodes.recorded(settings)
        if fakes or again:
            nodes.present(settings, _api(settings), [*again, *fakes])
    elapsed = elapsed_text(time.monotonic() - started)
    say(f"✓ the cluster is up ({elapsed}); for this shell: {FOR_THIS_SHELL}")
    return 0


def run_down(_: argparse.Namespace, settings: Settings) -> int:
    preflight.require_machine()
    with exclusive(settings.lock_file, "cluster"):
        say(
            "✓ the cluster is gone; the cache stays"
            if teardown.down(settings)
            else "✓ there was no cluster"
        )
    return 0


def run_status(parsed: argparse.Namespace, settings: Settings) -> int:
    preflight.require_machine()
    seen = status.read(settings)
    print(status.as_json(seen) if parsed.json else status.as_text(seen))
    return 0 if seen.state == "up" else 1


def run_env(_: argparse.Namespace, settings: Settings) -> int:
    chosen = target.resolve(os.environ)
    print(f"export KUBECONFIG={shlex.quote(chosen.kubeconfig)}")
    print(f'export PATH={shlex.quote(str(settings.tools))}:"$PATH"')
    return 0


def run_build(_: argparse.Namespace, settings: Settings) -> int:
    binaries.ensure_binaries(settings, binaries.CLUSTER_GROUPS)
    binaries.ensure_tools(settings)
    return 0


def run_load(parsed: argparse.Namespace, settings: Settings) -> int:
    refuse_current("load-image")
    preflight.require_machine()
    images.load(settings, parsed.archives)
    return 0


def run_build_image(parsed: argparse.Namespace, settings: Settings) -> int:
    preflight.require_machine()
    build_arguments = {}
    for text in parsed.build_arg:
        key, equals, value = text.partition("=")
        if not equals:
            raise DevclusterError(f"--build-arg {text} has no value; write {text}=VALUE")
        build_arguments[key] = value
    request = BuildRequest(parsed.tag, parsed.file, parsed.context, parsed.target, build_arguments)
    _build_and_load(settings, [request], parsed.load)
    return 0


def run_images(parsed: argparse.Namespace, settings: Settings) -> int:
    preflight.require_machine()
    _build_and_load(settings, project_images.requests(parsed.only), parsed.load)
    return 0


def _build_and_load(settings: Settings, requests: Sequence[BuildRequest], load: bool) -> None:
    if load:
        refuse_current("--load")
    packages.ensure_image_packages()
    for request in requests:
        built = build_image(settings, request)
        if load:
            images.load_once(settings, request.tag, built)
        else:
            print(built)


def run_fake_amd(parsed: argparse.Namespace, settings: Settings) -> int:
    refuse_current("fake-amd")
    preflight.require_machine()
    _require_running(settings)
    with exclusive(settings.lock_file, "cluster"):
        nodes.present(
            settings,
            _api(settings),
            [nodes.FakeAmd(parsed.node, parsed.gpus, parsed.product, parsed.create)],
        )
    say(f"✓ node {parsed.node} shows {parsed.gpus} {parsed.product}")
    return 0


def run_exec(parsed: argparse.Namespace, settings: Settings) -> int:
    preflight.require_machine()
    argv = [part for index, part in enumerate(parsed.argv) if index or part != "--"]
    if not argv:
        raise DevclusterError(
            "exec needs a program; write `python -m devcluster exec -- PROGRAM ARGUMENTS`"
        )
    running = _require_running(settings)
    os.execvp("nsenter", ["nsenter", f"--target={running.pid}", "--net", "--", *argv])


def refuse_current(what: str) -> None:
    if target.chosen_kind(os.environ) is target.Kind.CURRENT:
        raise DevclusterError(
            f"{what} is for the embedded cluster, but CLUSTER=current is given; unset it, or "
            "manage that cluster with its own tools"
        )


def _require_running(settings: Settings) -> node.Node:
    running = node.find(settings)
    if running is None:
        raise DevclusterError("the cluster is not running; start it with `python -m devcluster up`")
    return running


def _api(settings: Settings) -> Api:
    return health.api_of(settings, network.uplink(settings.instance).api_url)
