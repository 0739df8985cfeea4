"""What each command does, from its parsed arguments: checks, takes the lock, calls, prints.

Called by `cli`. A command returns its exit code; what a person can repair is raised.
"""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections.abc import Sequence

from devcluster import cluster, health, preflight, status, target, teardown
from devcluster.api import Api
from devcluster.errors import DevclusterError
from devcluster.fake_nodes import nodes
from devcluster.images import image_store, project_images
from devcluster.images.build_image import BuildRequest, build_image
from devcluster.lock import exclusive
from devcluster.neighbours import installation, registry
from devcluster.node import network, node_process
from devcluster.programs import binaries, packages
from devcluster.progress import elapsed_text, say
from devcluster.settings import Settings

FOR_THIS_SHELL = 'eval "$(python -m devcluster env --shell)"'


def run_up(parsed: argparse.Namespace, settings: Settings) -> int:
    refuse_current("up")
    preflight.require_machine()
    started = time.monotonic()
    wanted = registry.parse_names(parsed.neighbours)
    with exclusive(settings.lock_file, "cluster"):
        cluster.up(settings)
        if wanted:
            installation.ensure_running(settings, wanted)
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
    image_store.load(settings, parsed.archives)
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
            image_store.load_once(settings, request.tag, built)
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


def _require_running(settings: Settings) -> node_process.Node:
    running = node_process.find(settings)
    if running is None:
        raise DevclusterError("the cluster is not running; start it with `python -m devcluster up`")
    return running


def _api(settings: Settings) -> Api:
    return health.api_of(settings, network.uplink(settings.instance).api_url)
