"""The end of the demo: the pod that answers is killed, and the answer continues on another pod.

The same question is asked twice: in peace, and with a death in the middle. Both answers have to be
the same, byte for byte, and the server names the pods between which the second one moved. An answer
that ended before its pod died proves nothing and is asked again. `outlive` knows no cluster.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tools.kube import Kube, KubeError, condition, is_current, wait_until

Chunk = Mapping[str, Any]
# Longer than a death takes: to the limit of tokens, also past the end that the model would choose.
LONG_ANSWER = {
    "max_tokens": 800,
    "ignore_eos": True,
    "return_timings": True,
    "stream_options": {"include_usage": True},
}
_BEGUN = 8  # pieces of the answer before the death
_ATTEMPTS = 5
_CHANGE_SECONDS = 300.0
# Runs in every pod. Its engine computes in short turns, so that an answer lasts until a death, also
# of a model that writes a thousand tokens in a moment. At a line, the pod that has a request loses
# its servers at once, first the one that would hand the answer over; the other one runs on freely,
# as do both if the process that gives the line has ended. argv: the port, and the folder of
# processes.
KILL_IF_ANSWERING = """
import os, pathlib, select, signal, sys, urllib.request
found = {}
for entry in pathlib.Path(sys.argv[2]).glob("[0-9]*/cmdline"):
    for word in entry.read_bytes().split(b"\\0"):
        found.setdefault(word, int(entry.parent.name))
server = found[b"atom.entrypoints.openai_server"]
engine = found[b"atom.model_engine.core_main"]
print("ready", flush=True)
try:
    while not select.select([sys.stdin], [], [], 0.04)[0]:
        os.kill(engine, signal.SIGCONT)
        select.select([sys.stdin], [], [], 0.004)
        os.kill(engine, signal.SIGSTOP)
    if not sys.stdin.readline():
        sys.exit()
    url = f"http://127.0.0.1:{sys.argv[1]}/metrics"
    text = urllib.request.urlopen(url, timeout=30).read().decode()
    lines = [line for line in text.splitlines() if line.startswith("atom:requests_running{")]
    if not sum(float(line.split()[-1]) for line in lines):
        sys.exit(print("idle"))
    print("killed", flush=True)
    os.kill(server, signal.SIGKILL)
    os.kill(engine, signal.SIGKILL)
finally:
    os.kill(engine, signal.SIGCONT)
"""


@dataclass(frozen=True, slots=True)
class Move:
    """A change of the server in the middle of an answer, by their addresses. tokens: computed by
    the one that ended."""

    ended: str
    went_on: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Outlived:
    """An answer that was the same with a death as without. answer: its text."""

    killed: str
    move: Move
    answer: str

    def told(self, named: Callable[[str], str]) -> str:
        """Describe it for a terminal. named: the name of the pod with an address."""
        size = len(self.answer.encode())
        return (
            f"{self.killed} was killed after {self.move.tokens} tokens; "
            f"{named(self.move.went_on)} went on.\n"
            f"The client got one answer of {size:,} bytes, the same as without the death: "
            f"{self.answer[:60].strip()}…"
        )


Kill = Callable[[], str | None]


def outlive(
    ask: Callable[[], Iterator[Chunk]],
    killing: Callable[[], AbstractContextManager[Kill]],
    recover: Callable[[], None],
) -> Outlived:
    """Ask in peace, then kill the server that answers. killing: prepares for a death; its call
    kills the server that has the request and names it, None if none had it. recover: waits until
    all servers are back. Raises `KubeError` if the answers differ, or none was hit."""
    calm, _ = _read(ask())
    for _ in range(_ATTEMPTS):
        with killing() as kill:
            answer, moves, victim = _read_with_death(ask(), kill)
        if victim is not None and moves:
            if answer != calm:
                raise KubeError(_difference(calm, answer, victim))
            return Outlived(victim, moves[-1], answer)
        if victim is not None:
            recover()
    raise KubeError(
        f"each of {_ATTEMPTS} answers ended before its pod died, so nothing was shown; run the "
        "demo again on a machine that is less busy"
    )


def _read(
    chunks: Iterable[Chunk], begun: Callable[[], None] = lambda: None
) -> tuple[str, list[Move]]:
    """Return the text of an answer and its moves. begun: called once, in the middle."""
    text, pieces, moves = "", 0, []
    for chunk in chunks:
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content") or ""
            text += piece
            if piece and (pieces := pieces + 1) == _BEGUN:
                begun()
        moves += [Move(each["ended"], each["went_on"], each["tokens"]) for each in _moves(chunk)]
    return text, moves


def _read_with_death(chunks: Iterable[Chunk], kill: Kill) -> tuple[str, list[Move], str | None]:
    """Read an answer, and kill its server in the middle; also return which one that was."""
    killed: list[str | None] = []
    text, moves = _read(chunks, lambda: killed.append(kill()))
    return text, moves, killed[0] if killed else None


def _moves(chunk: Chunk) -> list[dict[str, Any]]:
    return list(chunk.get("moves") or ())


def _difference(calm: str, answer: str, victim: str) -> str:
    same = next(
        (at for at, pair in enumerate(zip(calm, answer, strict=False)) if pair[0] != pair[1]),
        min(len(calm), len(answer)),
    )
    return (
        f"the answer changed when {victim} was killed: {len(calm)} and {len(answer)} characters, "
        f"the first {same} of them the same; `kubectl logs` of the frontend has the engine's words"
    )


@dataclass(frozen=True, slots=True)
class ServingPods:
    """The engine pods of an AtomDeployment, behind a frontend."""

    kube: Kube
    name: str

    def start(self) -> None:
        """Scale to two engine pods and a frontend, and wait until the Service leads to it."""
        patch = json.dumps({"spec": {"replicas": 2, "frontend": {"replicas": 1}}})
        self.kube.kubectl("patch", "atomd", self.name, "--type=merge", f"--patch={patch}")
        self.recover()

    def recover(self) -> None:
        """Wait until both pods serve again."""
        wait_until(
            f"{self.name} with two pods behind a frontend", self._serves, seconds=_CHANGE_SECONDS
        )

    def _serves(self) -> bool:
        item = self.kube.get("atomd", self.name)
        selector = self.kube.get("service", self.name)["spec"]["selector"]
        return (
            is_current(item)
            and condition(item, "Ready").get("status") == "True"
            and condition(item, "Progressing").get("reason") == "Complete"
            and selector.get("app.kubernetes.io/component") == "frontend"
            and len(self._ready()) == 2
        )

    def _ready(self) -> list[dict[str, Any]]:
        selector = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/name=atom-engine"
        pods: list[dict[str, Any]] = self.kube.get("pods", f"--selector={selector}")["items"]
        return [
            pod
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"]
            and condition(pod, "Ready").get("status") == "True"
        ]

    def named(self, address: str) -> str:
        """Return the name of the pod with an address, else the address."""
        for pod in self._ready():
            if pod["status"].get("podIP") and pod["status"]["podIP"] in address:
                return str(pod["metadata"]["name"])
        return address

    def killing(self) -> AbstractContextManager[Kill]:
        """Prepare a process in each pod, so that a death takes milliseconds."""
        names = [str(pod["metadata"]["name"]) for pod in self._ready()]
        return killing_by({name: self._waiting(name) for name in names})

    def _waiting(self, pod: str) -> subprocess.Popen[str]:
        kubectl = shutil.which("kubectl", path=self.kube.environment["PATH"]) or "kubectl"
        there = ("exec", "--stdin", pod, "--container=engine", "--", "python3", "-c")
        words = (kubectl, f"--namespace={self.kube.namespace}", *there, KILL_IF_ANSWERING)
        return waiting_process((*words, "8000", "/proc"), self.kube.environment)


def waiting_process(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a command that runs KILL_IF_ANSWERING."""
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    )


@contextlib.contextmanager
def killing_by(waiting: Mapping[str, subprocess.Popen[str]]) -> Iterator[Kill]:
    """Wait until the processes, by their pods, are ready; the call kills the pod that answers."""
    try:
        for name, process in waiting.items():
            if _line_of(process) != "ready":
                raise KubeError(f"{name}: no process can be started in it; is it running?")
        yield lambda: _fire(waiting)
    finally:
        for process in waiting.values():
            process.communicate()  # the end of its input ends it


def _fire(waiting: Mapping[str, subprocess.Popen[str]]) -> str | None:
    """Let every process look at its pod; return the pod that was killed. Its own process may end
    before it can say so."""
    for process in waiting.values():
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write("\n")
            process.stdin.flush()
    return next((name for name, each in waiting.items() if _line_of(each) != "idle"), None)


def _line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
