"""The first process of the node's namespaces: mounts what must be private, then keeps the
components running.

Run by `node` inside new mount, network and process namespaces, as process 1 of them: when it ends,
however it ends, the kernel ends everything in them, and with the last process the mounts and the
network go too. It reaps orphans, restarts a component that dies, and writes what it sees to
components.json. It knows command lines and probes from plan.json, and neighbours.json where there
is one, and nothing else; standard library only, no imports of this package.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PROBE_INTERVAL_SECONDS = 0.2
FIRST_BACKOFF_SECONDS = 0.5
LAST_BACKOFF_SECONDS = 10.0
STEADY_SECONDS = 30.0  # a component that ran this long starts again without delay
MAX_LOG_BYTES = 64 << 20
NEIGHBOURS = "neighbours.json"


@dataclass(slots=True)
class Running:
    """One component's process, as the supervisor sees it."""

    spec: dict[str, Any]
    pid: int | None = None
    started: float = 0.0
    restarts: int = -1
    backoff: float = 0.0
    due: float = 0.0
    ready: bool = False
    last_exit: str = ""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return str(self.spec["name"])


class Supervisor:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.state = Path(plan["state"])
        self.components = {spec["name"]: Running(spec) for spec in plan["components"]}
        self._written = ""
        self.take_in_neighbours()

    def run(self) -> None:
        """Never returns but by SIGTERM or SIGINT; SIGHUP makes it look for neighbours."""
        waited = {signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, waited)
        while True:
            self.reap()
            self.start_due()
            self.probe()
            self.write_report()
            received = signal.sigtimedwait(waited, self.seconds_until_work())
            if received is None or received.si_signo == signal.SIGCHLD:
                continue
            if received.si_signo != signal.SIGHUP:
                return
            self.take_in_neighbours()

    def take_in_neighbours(self) -> None:
        """Add the components that were asked for beside the plan's; what is meant to run otherwise
        than it does is ended, and so started again.
        """
        path = self.state / NEIGHBOURS
        for spec in json.loads(path.read_text()) if path.exists() else []:
            known = self.components.setdefault(spec["name"], Running(spec))
            if known.spec != spec:
                known.spec = spec
                if known.pid is not None:
                    os.kill(known.pid, signal.SIGTERM)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for component in self.components.values():
                if component.pid == pid:
                    self.note_exit(component, os.waitstatus_to_exitcode(status))

    def note_exit(self, component: Running, code: int) -> None:
        lived = time.monotonic() - component.started
        if component.process is not None:
            component.process.returncode = (
                code  # reaped here: subprocess must not wait for this number again
            )
        component.pid, component.process, component.ready = None, None, False
        component.last_exit = f"code {code}" if code >= 0 else signal.Signals(-code).name
        component.backoff = next_backoff(component.backoff, lived)
        component.due = time.monotonic() + component.backoff
        print(f"{component.name} ended with {component.last_exit} after {lived:.1f} s", flush=True)

    def start_due(self) -> None:
        now = time.monotonic()
        for component in self.components.values():
            blocked = any(not self.components[name].ready for name in component.spec["after"])
            if (
                component.pid is None
                and now >= component.due
                and not (blocked and component.restarts < 0)
            ):
                self.start(component)

    def start(self, component: Running) -> None:
        component.started = time.monotonic()
        component.restarts += 1
        try:
            component.process = self.spawn(component)
        except OSError as error:
            component.last_exit = f"cannot start: {error}"
            component.due = component.started + LAST_BACKOFF_SECONDS
            return
        component.pid = component.process.pid
        component.ready = component.spec["probe"] is None

    def spawn(self, component: Running) -> subprocess.Popen[bytes]:
        path = self.state / "log" / f"{component.name}.log"
        too_long = path.exists() and path.stat().st_size > MAX_LOG_BYTES
        with path.open("wb" if too_long else "ab") as log:
            return subprocess.Popen(
                [sys.executable if part == "{python}" else part for part in component.spec["argv"]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=unblock_signals,
            )

    def probe(self) -> None:
        for component in self.components.values():
            if component.pid is not None and not component.ready:
                component.ready = answers(component.spec["probe"], Path(self.plan["pki"]))

    def seconds_until_work(self) -> float:
        """Short while something starts; long when all runs, for then only a signal brings work."""
        if all(c.ready for c in self.components.values()):
            return 3600.0
        return PROBE_INTERVAL_SECONDS

    def write_report(self) -> None:
        report = {
            c.name: {
                "pid": c.pid,
                "ready": c.ready,
                "restarts": max(0, c.restarts),
                "last_exit": c.last_exit,
            }
            for c in self.components.values()
        }
        text = json.dumps(report, indent=1)
        if text != self._written:
            temporary = self.state / ".components.json"
            temporary.write_text(text)
            temporary.replace(self.state / "components.json")
            self._written = text


def next_backoff(previous: float, lived_seconds: float) -> float:
    """Nothing after a steady life, else doubling up to a limit."""
    if lived_seconds >= STEADY_SECONDS:
        return 0.0
    return min(LAST_BACKOFF_SECONDS, max(FIRST_BACKOFF_SECONDS, 2 * previous))


def unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def answers(probe: dict[str, str], pki: Path) -> bool:
    try:
        if probe["kind"] == "https":
            return _https_answers(probe["target"], pki)
        if probe["kind"] == "unix":
            with socket.socket(socket.AF_UNIX) as unix:
                unix.settimeout(1)
                unix.connect(probe["target"])
            return True
        host, _, port = probe["target"].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except (OSError, http.client.HTTPException):
        return False


def _https_answers(url: str, pki: Path) -> bool:
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    parts = urlsplit(url)
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port, timeout=2, context=context
    )
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == 200
    finally:
        connection.close()


def mount_private(plan: dict[str, Any]) -> None:
    """Binds the folders that programs fix in their code to the state folder; seen in this mount
    namespace only.
    """
    commands = [
        ["mount", "--make-rshared", "/"],
        ["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"],
    ]
    for target, source in plan["binds"].items():
        commands.append(["mount", "--bind", source, target])
    for command in commands:
        subprocess.run(command, check=True)


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    mount_private(plan)
    print("mounts are private; waiting for the network", flush=True)
    # The starter writes one line when the network is there. If it dies before, its end of the pipe
    # closes.
    if sys.stdin.readline().strip() != "start":
        print("the starter ended before the network was there", flush=True)
        return
    sys.stdin.close()
    Supervisor(plan).run()


if __name__ == "__main__":
    main()
