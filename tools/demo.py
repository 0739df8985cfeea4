"""`make demo`: from nothing to a streamed chat answer on a real Kubernetes.

Carries out what a platform engineer would do by hand, and shows each command's outcome: cluster,
chart, kubectl apply, Ready, a chat through the Service. Safe to run again at any point; `make
demo-down` removes everything.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from devcluster import target
from devcluster.errors import DevclusterError
from tools.kube import Kube, KubeError, condition, is_current, wait_until
from tools.on_cluster import (
    EXAMPLE,
    OPERATOR_NAMESPACE,
    ROOT,
    demo_manifest,
    devcluster,
    install_operator,
    prepare_cluster,
)

NAME = "atom-tiny"
QUESTION = "What is ATOM?"
READY_SECONDS = 300.0
# Off in the example: what the demo's model says seldom repeats what was said before.
SPECULATION = {"engine": {"speculative": {"method": "ngram"}}}


def say(text: str) -> None:
    print(f"\033[1m▸ {text}\033[0m" if sys.stdout.isatty() else f"▸ {text}", flush=True)


def up() -> None:
    started = time.monotonic()
    say("Cluster and images")
    kube, images = prepare_cluster()
    say("helm upgrade --install atom-operator charts/atom-operator --namespace atom-system")
    install_operator(kube, images)
    say(f"kubectl apply -f {EXAMPLE.relative_to(ROOT)}")
    print(kube.apply(demo_manifest(images)).strip(), flush=True)
    show_until_ready(kube)
    say(f"Chat through the Service {NAME}: {QUESTION}")
    with kube.port_forward(f"service/{NAME}", 8000) as url:
        for piece in chat(url, QUESTION):
            print(piece, end="", flush=True)
    print()
    say(f"Done in {time.monotonic() - started:.0f} s. What to try next:")
    print(next_steps(kube), flush=True)


def show_until_ready(kube: Kube) -> None:
    """Print the AtomDeployment's line whenever it changes, until it is Ready."""
    shown: list[str] = []

    def ready() -> bool:
        header, row = kube.kubectl("get", "atomd", NAME).strip().splitlines()
        if not shown:
            print(header)
        without_age = row.rsplit(maxsplit=1)[0]
        if shown[-1:] != [without_age]:
            shown.append(without_age)
            print(row, flush=True)
        item = kube.get("atomd", NAME)
        return is_current(item) and condition(item, "Ready").get("status") == "True"

    try:
        wait_until(f"AtomDeployment {NAME} Ready", ready, seconds=READY_SECONDS)
    except KubeError as error:
        for entry in kube.get("atomd", NAME).get("status", {}).get("conditions", []):
            print(f"  {entry['type']}={entry['status']} {entry['reason']}: {entry['message']}")
        raise KubeError(
            f"{error}; `kubectl logs deployment/{NAME}` has the engine's words"
        ) from error


def chat(url: str, question: str, **fields: Any) -> Iterator[str]:
    """Yields the pieces of the streamed answer. fields: of the request, besides its own."""
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "stream": True,
        **fields,
    }
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise KubeError(f"the server answered {response.status}: {response.read().decode()}")
        for raw in response:
            data = raw.decode().removeprefix("data: ").strip()
            if data and data != "[DONE]":
                for choice in json.loads(data)["choices"]:
                    yield choice["delta"].get("content") or ""
    finally:
        connection.close()


def next_steps(kube: Kube) -> str:
    environment = (
        'eval "$(.venv/bin/python -m devcluster env --shell)"\n  '
        if kube.target.is_embedded
        else ""
    )
    return f"""  {environment}kubectl get atomd
  kubectl describe atomd {NAME}
  kubectl scale atomd {NAME} --replicas=2
  {speculation_patch()}
  .venv/bin/kubectl-atom chat {NAME}     # ask the same twice: what repeats takes fewer steps
  .venv/bin/kubectl-atom status {NAME}   # its line drafts; no answer has changed
  kubectl port-forward service/{NAME} 8000 &
  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{NAME}", "prompt": "The operator", "max_tokens": 30}}'
  make demo-down"""


def speculation_patch() -> str:
    """The command that turns speculation on."""
    patch = json.dumps({"spec": SPECULATION})
    return f"kubectl patch atomd {NAME} --type=merge --patch='{patch}'"


def down() -> None:
    chosen = target.resolve(os.environ)
    if chosen.is_embedded:
        devcluster("down")
        return
    kube = Kube(chosen)
    print(kube.kubectl("delete", "atomd", NAME, "--ignore-not-found", "--wait").strip())
    print(
        kube.run(
            "helm", "uninstall", "atom-operator", "--namespace", OPERATOR_NAMESPACE,
            "--ignore-not-found",
        ).strip()
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="The demo: make demo, make demo-down.")
    parser.add_argument("action", choices=("up", "down"))
    action = parser.parse_args().action
    try:
        up() if action == "up" else down()
    except (KubeError, DevclusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; run it again to go on, `make demo-down` to clean up", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
