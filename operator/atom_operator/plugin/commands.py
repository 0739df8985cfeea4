"""The commands of `kubectl atom` that need a cluster: read with kubectl, print with the views."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from atom_operator import constants
from atom_operator.domain import CHILD_KINDS
from atom_operator.kinds import OPTIONAL_KINDS
from atom_operator.plugin import output, talking
from atom_operator.plugin.canary_commands import add_canary_commands
from atom_operator.plugin.gathering import (
    MOST_PODS,
    RESOURCE,
    claimed_devices,
    is_about,
    selector,
    served,
    serving_pods,
    what_is_there,
)
from atom_operator.plugin.gpus_view import NO_DEVICES, gpu_document, gpu_lines
from atom_operator.plugin.kubectl import Kubectl, KubectlError
from atom_operator.plugin.status_view import status_document, status_lines
from atom_operator.plugin.top_view import Look, Sample, kept_drafts, parse, top_document, top_lines
from atom_operator.plugin.why import causes
from atom_operator.plugin.why_view import why_document, why_lines

_LOG_LINES = 50
Options = argparse.Namespace


def status(kubectl: Kubectl, options: Options) -> int:
    """Print the tree of one AtomDeployment; 0 when it is ready, else 1."""
    parent = kubectl.json("get", RESOURCE, options.name)
    kinds = ",".join([*served(kubectl, (*CHILD_KINDS, *OPTIONAL_KINDS)), "pods"])
    children = kubectl.items("get", kinds, selector(options.name))
    children += kubectl.items("get", "jobs", selector(options.name, constants.LABEL_JOB_FOR))
    events = [item for item in kubectl.items("get", "events") if is_about(item, options.name)]
    drafts = _drafts(kubectl, parent, children)
    if options.output == "text":
        output.show(status_lines(parent, children, events, drafts, now=datetime.now(UTC)))
    else:
        output.show_document(status_document(parent, children, events, drafts), options.output)
    conditions = (parent.get("status") or {}).get("conditions") or ()
    return int(not any(c["type"] == "Ready" and c["status"] == "True" for c in conditions))


def why(kubectl: Kubectl, options: Options) -> int:
    """Print the obstacles of one AtomDeployment; return 0 if it is ready, else 1."""
    seen = what_is_there(kubectl, options.name)
    found = causes(seen)
    document = why_document(seen, found)
    if options.output == "text":
        output.show(why_lines(seen, found))
    else:
        output.show_document(document, options.output)
    return int(not document["ready"])


def _drafts(kubectl: Kubectl, parent: dict[str, Any], children: list[dict[str, Any]]) -> str:
    """Return how the engines' drafts do, of an AtomDeployment that speculates."""
    asked = ((parent.get("spec") or {}).get("engine") or {}).get("speculative")
    if asked is None:
        return ""
    names = serving_pods(child for child in children if child.get("kind") == "Pod")
    with ThreadPoolExecutor(max_workers=8) as threads:
        return kept_drafts(list(threads.map(lambda name: _look(kubectl, name), names)))


def gpus(kubectl: Kubectl, options: Options) -> int:
    """Print the inventory of the whole cluster."""
    nodes = kubectl.items("get", "nodes")
    pods = kubectl.items("get", "pods", "--all-namespaces", "--field-selector=spec.nodeName!=")
    try:
        picture = claimed_devices(kubectl)
    except KubectlError as error:
        picture = NO_DEVICES
        print(f"warning: {error}", file=sys.stderr)
    if options.output == "text":
        output.show(gpu_lines(nodes, pods, output.width(), picture))
    else:
        output.show_document(gpu_document(nodes, pods, picture), options.output)
    return 0


def top(kubectl: Kubectl, options: Options) -> int:
    """Print a table of the engines' metrics, once or for ever."""
    while True:
        samples, seconds = _sample(kubectl, options)
        if not samples:
            kubectl.json("get", RESOURCE, options.name)  # reports it if it does not exist
            raise KubectlError(
                f"AtomDeployment {options.name} has no pod: kubectl atom why {options.name}"
            )
        if options.output == "text":
            output.show(top_lines(samples, seconds, output.width()))
        else:
            output.show_document(top_document(samples, seconds), options.output)
        if not options.watch:
            return 0
        if options.output != "json":
            print("---" if options.output == "yaml" else "", flush=True)


def logs(kubectl: Kubectl, options: Options) -> int:
    """Print the logs of every engine pod, each line with its pod's name."""
    kubectl.json("get", RESOURCE, options.name)  # reports it if it does not exist
    if not kubectl.items("get", "pods", selector(options.name)):
        name = options.name
        raise KubectlError(f"AtomDeployment {name} has no pod yet: kubectl atom why {name}")
    arguments = [
        "logs",
        selector(options.name),
        f"--container={constants.ENGINE_CONTAINER}",
        "--prefix",
        f"--tail={options.tail}",
        f"--max-log-requests={MOST_PODS}",
    ]
    for flag in ("follow", "previous", "timestamps"):
        if getattr(options, flag):
            arguments.append(f"--{flag}")
    with closing(kubectl.lines(*arguments)) as lines:
        for line in lines:
            if options.output == "text":
                print(line, end="", flush=True)
            else:
                talking.show_log_line(line, options.output)
    return 0


def chat(kubectl: Kubectl, options: Options) -> int:
    """Ask one question with --message, else hold a conversation until the end of input."""
    kubectl.json("get", RESOURCE, options.name)  # reports it if it does not exist
    with kubectl.port_forward(f"service/{options.name}", constants.ENGINE_PORT) as url:
        talking.talk(url, options)
    return 0


def add_global_flags(parser: argparse.ArgumentParser) -> None:
    """Add kubectl's flags that choose the cluster; they may stand before or after the command."""
    absent = argparse.SUPPRESS
    parser.add_argument("-n", "--namespace", default=absent, help="default: the context's")
    parser.add_argument("--context", default=absent, help="of the kubeconfig; default: the current")
    parser.add_argument(
        "--kubeconfig", default=absent, metavar="FILE", help="default: kubectl's own"
    )


def add_commands(commands: Any) -> None:
    """Add every command with its flags; the options' `run` is the function to call."""
    for name, run, text in (
        ("status", status, "conditions, capacity, objects and events of one AtomDeployment"),
        ("why", why, "why it is not ready: every cause, most causal first, and what to do next"),
        ("top", top, "what the engines do now: requests, KV cache, tokens per second"),
        ("logs", logs, "logs of every engine pod"),
        ("chat", chat, "talk to the model, through a port-forward"),
    ):
        parser = commands.add_parser(name, help=text)
        parser.add_argument("name", metavar="NAME", help="name of the AtomDeployment")
        _common(parser, run)
        if name in _FLAGS:
            _FLAGS[name](parser)
    add_canary_commands(commands, _plain)
    parser = commands.add_parser(
        "gpus", help="every AMD device of the cluster: free, used, blocked"
    )
    _common(parser, gpus)


def _plain(parser: argparse.ArgumentParser, run: Callable[[Kubectl, Options], int]) -> None:
    parser.set_defaults(run=run)
    add_global_flags(parser)


def _common(parser: argparse.ArgumentParser, run: Callable[[Kubectl, Options], int]) -> None:
    _plain(parser, run)
    parser.add_argument(
        "-o", "--output", choices=output.FORMATS, default="text", help="default: text"
    )


def _top_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="between the two looks"
    )
    parser.add_argument("-w", "--watch", action="store_true", help="again and again")


def _log_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="go on as lines come")
    parser.add_argument("-p", "--previous", action="store_true", help="of the container before")
    parser.add_argument("--timestamps", action="store_true", help="the time of each line")
    parser.add_argument("--tail", type=int, default=_LOG_LINES, help="last lines of each pod")


def _chat_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--message", help="ask this and end")
    parser.add_argument("--max-tokens", type=int, help="most tokens of each answer")


_FLAGS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "top": _top_flags,
    "logs": _log_flags,
    "chat": _chat_flags,
}


def _sample(kubectl: Kubectl, options: Options) -> tuple[list[Sample], float]:
    """Look twice at every pod that has an address; return the samples and the seconds in
    between."""
    names = serving_pods(kubectl.items("get", "pods", selector(options.name)))
    with ThreadPoolExecutor(max_workers=8) as threads:
        began = time.monotonic()
        before = list(threads.map(lambda name: _look(kubectl, name), names))
        time.sleep(options.interval)
        seconds = time.monotonic() - began
        after = list(threads.map(lambda name: _look(kubectl, name), names))
    return [Sample(*item) for item in zip(names, before, after, strict=True)], seconds


def _look(kubectl: Kubectl, pod: str) -> Look | None:
    """Read /metrics of a pod through the API server; None without an answer."""
    address = f"pods/{pod}:{constants.ENGINE_PORT}"
    namespace = kubectl.namespace or "default"
    path = f"/api/v1/namespaces/{namespace}/{address}/proxy/metrics"
    try:
        return parse(kubectl.text("get", "--raw", path))
    except KubectlError:
        return None
