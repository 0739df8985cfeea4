"""kubectl's errors in words that say what, where and the remedy. Pure.

A table of kubectl's known errors; any other text is passed on without its prefix. Called by
kubectl.py.
"""

from __future__ import annotations

import re

from atom_operator import constants

_NO_CLUSTER = (
    "no cluster is configured: set KUBECONFIG or --kubeconfig to a file that names one, or choose "
    "a context of yours by kubectl config use-context NAME"
)
_PREFIX = re.compile(
    r"^(error: |Error from server( \([A-Za-z]+\))?: |Unable to connect to the server: )+"
)
_NOISE = re.compile(r"^[EWI][0-9]{4} .*$", re.MULTILINE)  # of kubectl's own log
_ABSENT = "there is no {kind} {name} in namespace {namespace}; {listing} lists what there is"
_TABLE: tuple[tuple[str, str], ...] = (
    (r"current-context (must exist|is not set)|no configuration has been provided", _NO_CLUSTER),
    (r"invalid configuration: no configuration", _NO_CLUSTER),
    (r"connection to the server localhost:8080 was refused", _NO_CLUSTER),
    (
        r'context "?(?P<context>[^"\s]+)"? does not exist|(?:context was not found for specified '
        r"context:|cannot locate context) (?P<context2>\S+)",
        "your kubeconfig has no context {context}; kubectl config get-contexts lists those it has",
    ),
    (
        r"doesn't have a resource type \"?atomdeployments",
        "this cluster knows no AtomDeployments: install the operator's chart, or its CRD",
    ),
    (
        rf'{constants.PLURAL}\.{re.escape(constants.GROUP)} "(?P<name>[^"]+)" not found',
        _ABSENT.format(
            kind=constants.KIND,
            name="{name}",
            namespace="{namespace}",
            listing="kubectl get atomdeployments -A",
        ),
    ),
    (
        r'services "(?P<name>[^"]+)" not found',
        "AtomDeployment {name} in namespace {namespace} has no Service yet: "
        "kubectl atom why {name}",
    ),
    (
        r'namespaces "(?P<name>[^"]+)" not found',
        "there is no namespace {name}; kubectl get namespaces lists what there is",
    ),
    (
        r"is forbidden: (?P<rest>.*)",
        "you may not do that in this cluster ({rest}); ask whoever gives rights in it",
    ),
    (
        r"connection to the server (?P<server>\S+) was refused",
        "the cluster at {server} does not answer; does it run, and is that its address?",
    ),
    (
        r"(?P<rest>dial tcp .*|.*i/o timeout|.*no such host|.*certificate .*)",
        "the cluster cannot be reached: {rest}",
    ),
    (
        r"You must be logged in|Unauthorized",
        "the cluster does not know you: your credentials are wrong or have expired",
    ),
)
_COMPILED = tuple((re.compile(pattern), words) for pattern, words in _TABLE)


def in_our_words(text: str, namespace: str | None) -> str:
    """Translate an error of kubectl to one line."""
    plain = _NOISE.sub("", text).strip() or text.strip()
    for pattern, words in _COMPILED:
        match = pattern.search(plain)
        if match is not None:
            groups = {name: value for name, value in match.groupdict().items() if value}
            if "context2" in groups:
                groups["context"] = groups["context2"]
            return words.format(**{"namespace": namespace or "default", "name": "", **groups})
    return _PREFIX.sub("", " ".join(plain.split()))
