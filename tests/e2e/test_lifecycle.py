"""One AtomDeployment's life on a real Kubernetes, step by step, in order.

apply → Ready → answer → scale to 2 → change maxModelLen and turn speculation on: a rollout without
a failed request, and the same answers after it → kill the engine process: it recovers → delete:
nothing is left.
"""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from tests.e2e.client_pod import start_client, stop_client
from tests.support.operator.plugin import atom
from tests.support.operator.status_shown import SHOWN_COLUMNS
from tests.support.server.served_answers import Served, serve_conversations
from tools.demo.steps import SPECULATION, chat
from tools.kube import Kube, KubeError, condition, is_current, wait_until
from tools.on_cluster import Images, demo_manifest

pytestmark = pytest.mark.cluster

NAME = "atom-tiny"
CHILDREN = "deployment,service,serviceaccount,configmap,poddisruptionbudget"
OWNED = f"app.kubernetes.io/instance={NAME}"
NEW_MAX_MODEL_LEN = 256
FAILS_SOON = {"progressDeadlineSeconds": 10}
HANDOVER = {"handover": True, "drainSeconds": 120}
ASKED = 4  # two threads, each before and behind a change; how many more says how fast a machine is
# Finds the engine process by its command line and kills it as the kernel's OOM killer would.
KILL_ENGINE = """
import os, pathlib, signal
for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    if b"atom.model_engine.core_main" in entry.read_bytes().split(b"\\0"):
        os.kill(int(entry.parent.name), signal.SIGKILL)
        print("killed", entry.parent.name)
"""

SIGNAL_ENGINE = """
import os, pathlib, signal, sys, time
(engine,) = [
    int(entry.parent.name)
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline")
    if b"atom.model_engine.core_main" in entry.read_bytes().split(b"\\0")
]
for number, name in enumerate(sys.argv[1:]):
    time.sleep(0.05 * bool(number))
    os.kill(engine, getattr(signal, name))
print("sent")
"""
KILL_POD = """
import os, pathlib, signal
found = {}
for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    for word in entry.read_bytes().split(b"\\0"):
        found.setdefault(word, int(entry.parent.name))
for name in (b"atom.entrypoints.openai_server", b"atom.model_engine.core_main"):
    os.kill(found[name], signal.SIGKILL)
"""


def deployment(kube: Kube) -> dict[str, Any]:
    return kube.get("atomd", NAME)


def wait_ready(kube: Kube, *, replicas: int, seconds: float = 240.0) -> dict[str, Any]:
    """The AtomDeployment once its status is current, Ready, and has so many ready replicas."""

    def probe() -> dict[str, Any] | None:
        item = deployment(kube)
        ready = condition(item, "Ready").get("status") == "True" and is_current(item)
        return item if ready and item["status"].get("readyReplicas") == replicas else None

    return wait_until(f"{NAME} Ready with {replicas} replicas", probe, seconds=seconds)


def wait_rolled_out(kube: Kube, *, replicas: int) -> None:
    """Wait until all replicas have the newest revision, and no pod of another one is left."""

    def probe() -> bool:
        item = deployment(kube)
        done = condition(item, "Progressing").get("reason") == "Complete" and is_current(item)
        return done and len(engine_pods(kube)) == replicas

    wait_until(f"{NAME} rolled out", probe, seconds=300)
    wait_ready(kube, replicas=replicas)


def all_pods(kube: Kube) -> list[dict[str, Any]]:
    pods: list[dict[str, Any]] = kube.get("pods", f"--selector={OWNED}")["items"]
    return pods


def patch_spec(kube: Kube, **fields: Any) -> None:
    patch = json.dumps({"spec": fields})
    kube.kubectl("patch", "atomd", NAME, "--type=merge", f"--patch={patch}")


def engine_pods(kube: Kube) -> list[dict[str, Any]]:
    return [
        pod
        for pod in all_pods(kube)
        if "deletionTimestamp" not in pod["metadata"]
        and pod["metadata"]["labels"]["app.kubernetes.io/name"] == "atom-engine"
    ]


def test_apply_becomes_ready(kube: Kube, images: Images) -> None:
    kube.apply(demo_manifest(images))
    item = wait_ready(kube, replicas=1)
    assert {kind: condition(item, kind)["status"] for kind in ("Accepted", "CapacityFits")} == {
        "Accepted": "True",
        "CapacityFits": "True",
    }
    header, row = kube.kubectl("get", "atomd", NAME).splitlines()
    assert header.split() == ["NAME", *SHOWN_COLUMNS]
    assert row.split()[1] == "True"


def test_service_streams_an_answer(kube: Kube) -> None:
    """Counts the pieces of an answer that fills the context: a server whose loop is late sends
    the tokens of several steps together, and a pod held to its CPU share may be late for all of
    a short answer's."""
    with kube.port_forward(f"service/{NAME}", 8000) as url:
        answer = "".join(chat(url, "What is ATOM?")).lower()
        pieces = list(chat(url, "What is ATOM?", ignore_eos=True))
    assert "engine" in answer or "amd" in answer
    assert len([piece for piece in pieces if piece]) > 3, "streamed in pieces"
    assert "".join(pieces).lower().startswith(answer)


def test_plan_is_what_the_engine_reports(kube: Kube) -> None:
    planned = deployment(kube)["status"]["capacity"]
    logs = kube.kubectl("logs", f"deployment/{NAME}", "--container=engine")
    assert str(planned["blocks"]) in logs.replace(",", ""), "the start-up table names the blocks"


def test_scale_to_two(kube: Kube) -> None:
    kube.kubectl("scale", "atomd", NAME, "--replicas=2")
    wait_ready(kube, replicas=2)
    assert len(engine_pods(kube)) == 2
    assert kube.get("pdb", NAME)["spec"]["maxUnavailable"] == 1


def test_drift_of_a_child_is_repaired(kube: Kube) -> None:
    patch = '[{"op": "replace", "path": "/spec/ports/0/port", "value": 9999}]'
    kube.kubectl("patch", "service", NAME, "--type=json", f"--patch={patch}")
    wait_until(
        "the Service's port repaired",
        lambda: kube.get("service", NAME)["spec"]["ports"][0]["port"] == 8000,
        seconds=60,
    )
    kube.kubectl("delete", "service", NAME)
    wait_until("the Service back", lambda: kube.get("service", NAME), seconds=60)


def test_rollout_to_speculation_fails_no_request_and_changes_no_answer(
    kube: Kube, images: Images
) -> None:
    """Half a minute on two busy cores: two engines start one after the other."""
    answers = answered(kube)
    start_client(kube, images, NAME)
    before = {pod["metadata"]["name"] for pod in engine_pods(kube)}
    engine = {"maxModelLen": NEW_MAX_MODEL_LEN, **SPECULATION["engine"]}
    patch_spec(kube, engine=engine, rollout=HANDOVER)  # one rollout for the tests below as well

    def rolled_out() -> bool:
        pods = {pod["metadata"]["name"] for pod in engine_pods(kube)}
        return len(pods) == 2 and not pods & before

    wait_until("both pods replaced", rolled_out, seconds=300)
    wait_ready(kube, replicas=2)
    summary = stop_client(kube)
    assert summary["failures"] == []
    assert summary["answered"] >= ASKED, "the client was asking all the while"
    with kube.port_forward(f"service/{NAME}", 8000) as url:
        assert model_length(url) == NEW_MAX_MODEL_LEN
    assert len({answer.text for answer in answers}) > 2
    assert all(len(answer.tokens) == answer.usage[1] > 4 for answer in answers)
    assert answered(kube) == answers


def test_acceptance_is_where_users_look(kube: Kube) -> None:
    def seen_by_top() -> bool:
        header, *rows = atom(kube, "top", NAME, "--interval=1.5").splitlines()
        column = header.split().index("DRAFTS-KEPT")
        return any(row.split()[column].endswith("%") for row in rows)

    with asking(kube):
        wait_until("drafts in kubectl atom top", seen_by_top, seconds=60)
    told = atom(kube, "status", NAME)
    assert re.search(r"drafts +[1-9]\d*% of [\d,]+ drafted tokens kept, [1-9]\.\d+ tokens", told)
    kube.kubectl("annotate", "atomd", NAME, "tests/look=now")  # the operator looks once a minute

    def acceptance() -> bool:  # a report of the rollout's first drafts stands until the next look
        found = deployment(kube)["status"].get("speculation") or {}
        return found.get("acceptedPercent", 0) > 50 and found["tokensPerStep"] > 2

    wait_until("acceptance in the status", acceptance, seconds=150)

    def told_by_the_column() -> bool:  # both move on while it is asked
        header, row = kube.kubectl("get", "atomd", NAME, "--output=wide").splitlines()
        column = header.split().index("DRAFTS-KEPT-%")
        percent = deployment(kube)["status"]["speculation"]["acceptedPercent"]
        return row.split()[column] == str(percent)

    wait_until("acceptance in kubectl get", told_by_the_column, seconds=60)


def test_a_bad_image_is_rolled_back_and_fails_no_request(kube: Kube, images: Images) -> None:
    """Some twenty seconds: a rollout fails when its deadline of ten is past."""
    good = deployment(kube)["status"]["revision"]
    start_client(kube, images, NAME)
    patch_spec(kube, engine={"image": "localhost/atom-none:0"}, rollout=FAILS_SOON)

    def rolled_back() -> bool:
        return condition(deployment(kube), "Degraded").get("reason") == "RolledBack"

    wait_until("the rollback", rolled_back, seconds=180)
    assert deployment(kube)["status"]["revision"] == good
    patch_spec(kube, engine={"image": images.engine}, rollout={"progressDeadlineSeconds": None})
    wait_ready(kube, replicas=2)
    summary = stop_client(kube)
    assert summary["failures"] == []
    assert summary["answered"] >= ASKED, "the client was asking all the while"


def test_scaling_down_fails_no_request(kube: Kube, images: Images) -> None:
    """Some twenty seconds: an engine ends once no request is sent to it, another starts."""
    start_client(kube, images, NAME)
    kube.kubectl("scale", "atomd", NAME, "--replicas=1")
    wait_ready(kube, replicas=1)
    wait_until("the end of the other pod", lambda: len(all_pods(kube)) == 1, seconds=120)
    summary = stop_client(kube)
    assert summary["failures"] == []
    assert summary["answered"] >= ASKED, "the client was asking all the while"
    kube.kubectl("scale", "atomd", NAME, "--replicas=2")
    wait_ready(kube, replicas=2)


def test_killed_engine_process_recovers(kube: Kube) -> None:
    pod = engine_pods(kube)[0]["metadata"]["name"]
    said = kube.kubectl("exec", pod, "--container=engine", "--", "python3", "-c", KILL_ENGINE)
    assert said.startswith("killed")

    def restarted() -> bool:
        (status,) = kube.get("pod", pod)["status"]["containerStatuses"]
        return bool(status["restartCount"] == 1 and status["ready"])

    wait_until("the container restarted and ready", restarted, seconds=180)
    (status,) = kube.get("pod", pod)["status"]["containerStatuses"]
    ended = status["lastState"]["terminated"]
    assert ended["exitCode"] == 1
    assert "killed by signal 9" in ended["message"]
    wait_ready(kube, replicas=2)
    with kube.port_forward(f"pod/{pod}", 8000) as url:
        assert "".join(chat(url, "What is ATOM?"))


@pytest.fixture(scope="module")
def two_serving(kube: Kube, images: Images) -> Iterator[None]:
    """Two replicas that hand answers over; made here if no test before has made them, as in
    `make test-all`."""
    is_there = any(item["metadata"]["name"] == NAME for item in kube.get("atomd")["items"])
    if not is_there:
        kube.apply(demo_manifest(images))
        engine = {"maxModelLen": NEW_MAX_MODEL_LEN, **SPECULATION["engine"]}
        patch_spec(kube, replicas=2, engine=engine, rollout=HANDOVER)
        wait_rolled_out(kube, replicas=2)
    yield
    if not is_there:
        kube.kubectl("delete", "atomd", NAME, "--wait")


@pytest.mark.whole  # one process of a worker is killed in test_workers, one pod is drained below
@pytest.mark.usefixtures("two_serving")
def test_answers_outlive_a_pod_that_is_killed_behind_the_frontend(kube: Kube) -> None:
    """Its engines stand still but for moments, so that no answer ends before its pod does."""
    with kube.port_forward(f"service/{NAME}", 8000) as url:
        calm = read_answer(url, [])
    patch_spec(kube, frontend={"replicas": 1})
    wait_rolled_out(kube, replicas=2)  # engines share a Secret with their first frontend
    wait_until("the Service leads to the frontend", lambda: leads_to_frontend(kube), seconds=180)
    victim, other = (pod["metadata"]["name"] for pod in engine_pods(kube))

    with kube.port_forward(f"service/{NAME}", 8000) as url, ThreadPoolExecutor(ASKED) as pool:

        def begin(number: int, told: list[str]) -> Future[str]:
            return pool.submit(read_answer, url, told)

        def is_open() -> bool:
            with kube.port_forward(f"pod/{victim}", 8000) as pod_url:
                return metric(pod_url, "requests_running") > 0

        answers = held_in_the_middle(kube, (victim, other), begin, is_open, calm)
        kill_pod(kube, victim)
        signal_engine(kube, other, "SIGCONT")
        assert [answer.result() for answer in answers] == [calm] * ASKED
        assert metric(url, "requests_continued_total") > 0
    patch_spec(kube, frontend=None)
    wait_until("the Service leads to engines", lambda: not leads_to_frontend(kube), seconds=180)
    wait_rolled_out(kube, replicas=2)


@pytest.mark.usefixtures("two_serving")
@pytest.mark.parametrize("goes", ["drained", pytest.param("scaled away", marks=pytest.mark.whole)])
def test_answers_go_on_at_another_pod_when_theirs_goes(kube: Kube, goes: str) -> None:
    """Engines stand still from the middle of the answers on, that of the pod that goes until the
    other pod has what it computed. A drain is an eviction through the API."""
    assert deployment(kube)["spec"]["rollout"].items() >= HANDOVER.items()
    wait_ready(kube, replicas=2)
    pods = [pod["metadata"]["name"] for pod in engine_pods(kube)]
    with ExitStack() as stack, ThreadPoolExecutor(ASKED) as pool:
        urls = {pod: stack.enter_context(kube.port_forward(f"pod/{pod}", 8000)) for pod in pods}
        calm = read_answer(urls[pods[0]], [])

        def begin(number: int, told: list[str]) -> Future[str]:
            return pool.submit(read_answer, urls[pods[number % 2]], told)

        def is_open() -> bool:
            return all(metric(url, "requests_running") for url in urls.values())

        answers = held_in_the_middle(kube, pods, begin, is_open, calm)
        open_at = {pod: metric(urls[pod], "requests_running") for pod in pods}
        if goes == "drained":
            evict(kube, pods[0])
        else:
            kube.kubectl("scale", "atomd", NAME, "--replicas=1")
        leaves = wait_until("a pod that goes", lambda: leaving(kube, pods), seconds=60)
        (stays,) = set(pods) - {leaves}
        signal_engine(kube, stays, "SIGCONT")
        wait_until(
            "its answers at the other pod",
            lambda: metric(urls[leaves], "requests_continued_total") >= open_at[leaves],
            seconds=90,
        )
        signal_engine(kube, leaves, "SIGCONT")
        assert [answer.result() for answer in answers] == [calm] * ASKED
    wait_ready(kube, replicas=2 if goes == "drained" else 1)


def test_delete_leaves_nothing(kube: Kube) -> None:
    assert "finalizers" not in deployment(kube)["metadata"]
    kube.kubectl("delete", "atomd", NAME, "--wait")

    def gone() -> bool:
        return not kube.get(f"{CHILDREN},replicaset,pod", f"--selector={OWNED}")["items"]

    wait_until("all children gone", gone, seconds=180)


# ---- helpers ------------------------------------------------------------------------------------


def answered(kube: Kube) -> list[Served]:
    with kube.port_forward(f"service/{NAME}", 8000) as url:
        return list(serve_conversations(url, NAME))


@contextmanager
def asking(kube: Kube) -> Iterator[None]:
    """Conversations one after the other while the block runs."""
    end = threading.Event()

    def ask(url: str) -> None:
        while not end.is_set():
            for _ in serve_conversations(url, NAME):
                if end.is_set():
                    return

    with kube.port_forward(f"service/{NAME}", 8000) as url, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, url)
        try:
            yield
        finally:
            end.set()
        asked.result()


def leads_to_frontend(kube: Kube) -> bool:
    selector = kube.get("service", NAME)["spec"]["selector"]
    return bool(selector.get("app.kubernetes.io/component") == "frontend")


def signal_engine(kube: Kube, pod: str, *signals: str) -> None:
    """Send signals to the engine process, with a moment for it to compute in between."""
    words = ("exec", pod, "--container=engine", "--", "python3", "-c", SIGNAL_ENGINE)
    assert kube.kubectl(*words, *signals).startswith("sent")


def evict(kube: Kube, pod: str) -> None:
    """Ask the API for what `kubectl drain` asks for."""
    metadata = {key: kube.get("pod", pod)["metadata"][key] for key in ("name", "namespace")}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{pod}/eviction"
    kube.kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(eviction))


def leaving(kube: Kube, names: Sequence[str]) -> str | None:
    """The one of the pods that is to end; None while all stay."""
    found = {pod["metadata"]["name"]: pod["metadata"] for pod in all_pods(kube)}
    return next((name for name in names if "deletionTimestamp" in found.get(name, {})), None)


def read_answer(url: str, told: list[str]) -> str:
    """Stream an answer that fills the context; `told` grows with its pieces that have a text: the
    first one, which says who speaks, comes before the engine computes."""
    for piece in filter(None, chat(url, "What is ATOM?", ignore_eos=True)):
        told.append(piece)
    return "".join(told)


def held_in_the_middle(
    kube: Kube,
    pods: Sequence[str],
    begin: Callable[[int, list[str]], Future[str]],
    is_open: Callable[[], bool],
    calm: str,
) -> list[Future[str]]:
    """Answers that have begun, while the engines stand still. On a busy machine these may have
    given all of theirs within a moment: then, where nothing `is_open`, each was the `calm` one, and
    others are begun."""

    def held() -> list[Future[str]] | None:
        for pod in pods:
            signal_engine(kube, pod, "SIGSTOP")
        pieces: list[list[str]] = [[] for _ in range(ASKED)]
        answers = [begin(number, told) for number, told in enumerate(pieces)]

        def begun() -> bool:
            for pod in pods:
                signal_engine(kube, pod, "SIGCONT", "SIGSTOP")
            return all(pieces)

        wait_until("all answers have begun", begun, seconds=90)
        if is_open():
            return answers
        for pod in pods:
            signal_engine(kube, pod, "SIGCONT")
        assert [answer.result() for answer in answers] == [calm] * ASKED
        return None

    return wait_until("answers that are held in the middle", held, seconds=240)


def kill_pod(kube: Kube, pod: str) -> None:
    """End the processes that serve at once, the one that holds connections first."""
    words = ("exec", pod, "--container=engine", "--", "python3", "-c", KILL_POD)
    with suppress(KubeError):  # its own container may end before it can say so
        kube.kubectl(*words)


def metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"atom:{name}{{"))


def model_length(url: str) -> int:
    with urllib.request.urlopen(f"{url}/server_info", timeout=10) as response:
        return int(json.load(response)["max_model_len"])
