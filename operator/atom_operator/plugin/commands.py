"""The commands of `kubectl atom` that need a cluster: read with kubectl, print with the views."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from atom_operator import constants
from atom_operator.domain import CHILD_KINDS
from atom_operator.kinds import OPTIONAL_KINDS, Kind
from atom_operator.plugin.chat import Model, converse
from atom_operator.plugin.gpus_view import gpu_lines
from atom_operator.plugin.kubectl import Kubectl, KubectlError
from atom_operator.plugin.status_view import status_lines
from atom_operator.plugin.top_view import Look, Sample, kept_drafts, parse, top_lines

_LOG_LINES = 50
_MOST_PODS = 50
Options = argparse.Namespace
_RESOURCE = f"{constants.PLURAL}.{constants.GROUP}"


def status(kubectl: Kubectl, options: Options) -> int:
    """The tree of one AtomDeployment; 0 when it is ready, else 1."""
    parent = kubectl.json("get", _RESOURCE, options.name)
    kinds = ",".join([*_served(kubectl, (*CHILD_KINDS, *OPTIONAL_KINDS)), "pods"])
    children = kubectl.items("get", kinds, _selector(options.name))
    events = [item for item in kubectl.items("get", "events") if _is_about(item, options.name)]
    _print(status_lines(parent, children, events, _drafts(kubectl, parent, children)))
    conditions = (parent.get("status") or {}).get("conditions") or ()
    return int(not any(c["type"] == "Ready" and c["status"] == "True" for c in conditions))


def _drafts(kubectl: Kubectl, parent: dict[str, Any], children: list[dict[str, Any]]) -> str:
    """How the engines' drafts do, of an AtomDeployment that speculates."""
    asked = ((parent.get("spec") or {}).get("engine") or {}).get("speculative")
    if asked is None:
        return ""
    names = _serving_pods(child for child in children if child.get("kind") == "Pod")
    with ThreadPoolExecutor(max_workers=8) as threads:
        return kept_drafts(list(threads.map(lambda name: _look(kubectl, name), names)))


def gpus(kubectl: Kubectl, options: Options) -> int:
    """The inventory of the whole cluster."""
    nodes = kubectl.items("get", "nodes")
    pods = kubectl.items("get", "pods", "--all-namespaces", "--field-selector=spec.nodeName!=")
    _print(gpu_lines(nodes, pods))
    return 0


def top(kubectl: Kubectl, options: Options) -> int:
    """A table of the engines' metrics, once or for ever."""
    while True:
        samples, seconds = _sample(kubectl, options)
        if not samples:
            raise KubectlError(f"there is no pod of {options.name}")
        _print(top_lines(samples, seconds))
        if not options.watch:
            return 0
        print()


def logs(kubectl: Kubectl, options: Options) -> int:
    """The logs of every engine pod, each line with its pod's name."""
    arguments = [
        "logs",
        _selector(options.name),
        f"--container={constants.ENGINE_CONTAINER}",
        "--prefix",
        f"--tail={options.tail}",
        f"--max-log-requests={_MOST_PODS}",
    ]
    for flag in ("follow", "previous", "timestamps"):
        if getattr(options, flag):
            arguments.append(f"--{flag}")
    return kubectl.run(*arguments)


def chat(kubectl: Kubectl, options: Options) -> int:
    """One question with --message, else a conversation until the end of input."""
    questions = iter([options.message] if options.message else [])
    read: Callable[[], str | None] = (
        _ask if options.message is None else lambda: next(questions, None)
    )
    with kubectl.port_forward(f"service/{options.name}", constants.ENGINE_PORT) as url:
        model = Model(url, os.environ.get("ATOM_API_KEY"))
        converse(model, read, _write, options.max_tokens)
    return 0


def add_global_flags(parser: argparse.ArgumentParser) -> None:
    """kubectl's flags that choose the cluster; they may stand before or after the command."""
    absent = argparse.SUPPRESS
    parser.add_argument("-n", "--namespace", default=absent, help="default: the context's")
    parser.add_argument("--context", default=absent, help="of the kubeconfig; default: the current")
    parser.add_argument(
        "--kubeconfig", default=absent, metavar="FILE", help="default: kubectl's own"
    )


def add_commands(commands: Any) -> None:
    """Every command with its flags; `run` of the options is what to call."""
    for name, run, text in (
        ("status", status, "conditions, capacity, objects and events of one AtomDeployment"),
        ("top", top, "what the engines do now: requests, KV cache, tokens per second"),
        ("logs", logs, "logs of every engine pod"),
        ("chat", chat, "talk to the model, through a port-forward"),
    ):
        parser = commands.add_parser(name, help=text)
        parser.add_argument("name", help="name of the AtomDeployment")
        parser.set_defaults(run=run)
        add_global_flags(parser)
        if name in _FLAGS:
            _FLAGS[name](parser)
    parser = commands.add_parser(
        "gpus", help="every AMD device of the cluster: free, used, blocked"
    )
    add_global_flags(parser)
    parser.set_defaults(run=gpus)


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


def _selector(name: str) -> str:
    return f"--selector={constants.LABEL_DEPLOYMENT}={name}"


def _served(kubectl: Kubectl, kinds: Iterable[Kind]) -> list[str]:
    """Of these kinds what the cluster serves: kubectl refuses a list that names another."""
    served = set(kubectl.text("api-resources", "--namespaced", "--output=name").split())
    names = (f"{kind.plural}.{kind.group}".rstrip(".") for kind in kinds)
    return [name for name in names if name in served]


def _is_about(event: dict[str, Any], name: str) -> bool:
    """About the AtomDeployment, or something named after it."""
    about = event.get("involvedObject") or {}
    if about.get("kind") == constants.KIND:
        return bool(about.get("name") == name)
    return str(about.get("name", "")).startswith(f"{name}-")


def _sample(kubectl: Kubectl, options: Options) -> tuple[list[Sample], float]:
    """Two looks at every pod that has an address, and the seconds between them."""
    pods = kubectl.items("get", "pods", _selector(options.name))
    names = _serving_pods(pods)
    with ThreadPoolExecutor(max_workers=8) as threads:
        began = time.monotonic()
        before = list(threads.map(lambda name: _look(kubectl, name), names))
        time.sleep(options.interval)
        seconds = time.monotonic() - began
        after = list(threads.map(lambda name: _look(kubectl, name), names))
    return [Sample(*item) for item in zip(names, before, after, strict=True)], seconds


def _serving_pods(pods: Iterable[dict[str, Any]]) -> list[str]:
    """Names of those that have an address of their own."""
    serving = [pod for pod in pods if _role(pod) != constants.ROLE_WORKER]
    return sorted(str(pod["metadata"]["name"]) for pod in serving)[:_MOST_PODS]


def _role(pod: dict[str, Any]) -> str | None:
    return (pod["metadata"].get("labels") or {}).get(constants.LABEL_ROLE)


def _look(kubectl: Kubectl, pod: str) -> Look | None:
    """/metrics of a pod through the API server; None without an answer."""
    address = f"pods/{pod}:{constants.ENGINE_PORT}"
    namespace = kubectl.namespace or "default"
    path = f"/api/v1/namespaces/{namespace}/{address}/proxy/metrics"
    try:
        return parse(kubectl.text("get", "--raw", path))
    except KubectlError:
        return None


def _ask() -> str | None:
    """A line of the user's; None at the end of input, or when it is left empty."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip() or None
    except EOFError:
        return None


def _write(text: str) -> None:
    print(text, end="", flush=True)


def _print(lines: Iterable[str]) -> None:
    print("\n".join(lines))
