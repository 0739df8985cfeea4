"""The steps of `make demo`: from nothing to a streamed chat answer on a real Kubernetes.

MODEL=smollm2 serves a small trained model instead of the one that is in the image, and
MODEL=atom-tiny-eyes one that reads pictures.
Carries out what a platform engineer would do by hand, and shows each command's outcome: cluster,
chart, kubectl apply, Ready, a chat through the Service, and the death of the pod that answers. Safe
to run again at any point; `make demo-down` removes everything.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from devcluster import target
from tools.demo.killed_pod import LONG_ANSWER, ServingPods, outlive
from tools.kube import Kube, KubeError, condition, is_current, wait_until
from tools.on_cluster import (
    ATOM_TINY,
    DEMO_MODELS,
    OPERATOR_NAMESPACE,
    ROOT,
    DemoModel,
    demo_manifest,
    devcluster,
    install_operator,
    offer_folders,
    prepare_cluster,
)

READY_SECONDS = 300.0
# Off in the example: what the demo's model says seldom repeats what was said before.
SPECULATION = {"engine": {"speculative": {"method": "ngram"}}}


def say(text: str) -> None:
    print(f"\033[1m▸ {text}\033[0m" if sys.stdout.isatty() else f"▸ {text}", flush=True)


def up(model: DemoModel) -> None:
    started = time.monotonic()
    if model.fetch is not None:
        refuse_foreign_nodes(model)
        say(f"Model {model.name}")
        print(model.fetch())
    say("Cluster and images")
    kube, images = prepare_cluster()
    say("helm upgrade --install atom-operator charts/atom-operator --namespace atom-system")
    install_operator(kube, images)
    offer_folders(kube, images, model)
    say(f"kubectl apply -f {model.example.relative_to(ROOT)}")
    print(kube.apply(demo_manifest(images, model)).strip(), flush=True)
    show_until_ready(kube, model.name)
    say(f"Chat through the Service {model.name}: {model.question}")
    with kube.port_forward(f"service/{model.name}", 8000) as url:
        for piece in chat(url, content_of(model), model=model.name):
            print(piece, end="", flush=True)
    print()
    if model.outlives_pods:
        say("Kill the pod that answers, behind a frontend, with a second pod beside it")
        tell_of_death(kube, model)
    say(f"Done in {time.monotonic() - started:.0f} s. What to try next:")
    print(next_steps(kube, model.name), flush=True)


def refuse_foreign_nodes(model: DemoModel) -> None:
    """Raise `KubeError` on a cluster whose nodes have no folder of this machine."""
    if not target.resolve(os.environ).is_embedded:
        raise KubeError(
            f"MODEL={model.name} is for the embedded cluster, whose claim {model.name} is a folder "
            f"of this machine; on CLUSTER=current make a claim of that name with the model's file "
            f"and apply {model.example.relative_to(ROOT)} with your image"
        )


def show_until_ready(kube: Kube, name: str) -> None:
    """Print the AtomDeployment's line whenever it changes, until it is Ready."""
    shown: list[str] = []

    def ready() -> bool:
        header, row = kube.kubectl("get", "atomd", name).strip().splitlines()
        if not shown:
            print(header)
        without_age = row.rsplit(maxsplit=1)[0]
        if shown[-1:] != [without_age]:
            shown.append(without_age)
            print(row, flush=True)
        item = kube.get("atomd", name)
        return is_current(item) and condition(item, "Ready").get("status") == "True"

    try:
        wait_until(f"AtomDeployment {name} Ready", ready, seconds=READY_SECONDS)
    except KubeError as error:
        for entry in kube.get("atomd", name).get("status", {}).get("conditions", []):
            print(f"  {entry['type']}={entry['status']} {entry['reason']}: {entry['message']}")
        raise KubeError(
            f"{error}; `kubectl logs deployment/{name}` has the engine's words"
        ) from error


def content_of(model: DemoModel) -> str | list[dict[str, Any]]:
    """Return the demo's question as the content of a message, with a picture for a model that reads
    pictures."""
    if not model.reads_pictures:
        return model.question
    from tools.demo_eyes.pictures import Scene, Square, as_data_url

    picture = as_data_url(Scene((Square("red", 0), Square("blue", 4), Square("green", 5))))
    print(f"(a picture of three squares, {len(picture):,} characters)")
    return [
        {"type": "image_url", "image_url": {"url": picture}},
        {"type": "text", "text": model.question},
    ]


def tell_of_death(kube: Kube, model: DemoModel) -> None:
    """Kill the pod that answers, and print what the client saw of it."""
    pods = ServingPods(kube, model.name)
    pods.start()
    with kube.port_forward(f"service/{model.name}", 8000) as url:

        def ask() -> Iterator[dict[str, Any]]:
            return chunks(url, model.question, model=model.name, **LONG_ANSWER)

        found = outlive(ask, pods.killing, pods.recover)
    print(found.told(pods.named))


def chat(url: str, question: str | list[dict[str, Any]], **fields: Any) -> Iterator[str]:
    """Yields the pieces of the streamed answer. fields: of the request, besides its own."""
    for chunk in chunks(url, question, **fields):
        for choice in chunk["choices"]:
            yield choice["delta"].get("content") or ""


def chunks(
    url: str, question: str | list[dict[str, Any]], **fields: Any
) -> Iterator[dict[str, Any]]:
    """Yields the chunks of the streamed answer. fields: of the request, besides its own."""
    body = {
        "model": ATOM_TINY.name,
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
                chunk = json.loads(data)
                if "error" in chunk:
                    raise KubeError(f"the stream ended with {data}")
                yield chunk
    finally:
        connection.close()


def next_steps(kube: Kube, name: str) -> str:
    environment = (
        'eval "$(.venv/bin/python -m devcluster env --shell)"\n  '
        if kube.target.is_embedded
        else ""
    )
    return f"""  {environment}kubectl get atomd
  kubectl describe atomd {name}
  kubectl scale atomd {name} --replicas=3
  {speculation_patch(name)}
  .venv/bin/kubectl-atom chat {name}     # ask the same twice: what repeats takes fewer steps
  .venv/bin/kubectl-atom status {name}   # its line drafts; no answer has changed
  kubectl port-forward service/{name} 8000 &   # http://127.0.0.1:8000/ is a page to chat
  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{name}", "prompt": "The operator", "max_tokens": 30}}'
  make demo-down"""


def speculation_patch(name: str = ATOM_TINY.name) -> str:
    """The command that turns speculation on."""
    patch = json.dumps({"spec": SPECULATION})
    return f"kubectl patch atomd {name} --type=merge --patch='{patch}'"


def down() -> None:
    chosen = target.resolve(os.environ)
    if chosen.is_embedded:
        devcluster("down")
        return
    kube = Kube(chosen)
    names = list(DEMO_MODELS)
    print(kube.kubectl("delete", "atomd", *names, "--ignore-not-found", "--wait").strip())
    print(
        kube.run(
            "helm", "uninstall", "atom-operator", "--namespace", OPERATOR_NAMESPACE,
            "--ignore-not-found",
        ).strip()
    )  # fmt: skip
