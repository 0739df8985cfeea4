"""The user's kubectl as functions: their context, their rights, their flags.

The plug-in has no API client, so it can do only what `kubectl` can. Raises KubectlError in the
words of kubectl_words.py.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from atom_operator.plugin.kubectl_words import in_our_words

_COMMAND_SECONDS = 60
_FORWARDED = re.compile(r"127\.0\.0\.1:(\d+)")


class KubectlError(Exception):
    """Raised when kubectl is not there, or said no; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Runs kubectl; `flags` are the user's global ones; `namespace` None is the context's."""

    flags: tuple[str, ...] = ()
    namespace: str | None = None

    def text(self, *arguments: str) -> str:
        """Return standard output of a command."""
        command = self.command(*arguments)
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                encoding="utf-8",
                timeout=_COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise KubectlError(
                f"{' '.join(arguments)}: no answer in {_COMMAND_SECONDS} s"
            ) from error
        if done.returncode:
            words = done.stderr.strip() or f"kubectl {' '.join(arguments)} failed"
            raise KubectlError(in_our_words(words, self.namespace))
        return done.stdout

    def json(self, *arguments: str) -> dict[str, Any]:
        """Parse a command's output as JSON; `{}` if it is empty."""
        text = self.text(*arguments, "--output=json")
        found: dict[str, Any] = json.loads(text) if text.strip() else {}
        return found

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the objects of a list."""
        found: list[dict[str, Any]] = self.json(*arguments).get("items", [])
        return found

    def current_namespace(self) -> str:
        """Return the namespace of the context."""
        path = "jsonpath={.contexts[0].context.namespace}"
        return self.text("config", "view", "--minify", f"--output={path}").strip() or "default"

    def lines(self, *arguments: str) -> Generator[str, None, None]:
        """Yield a command's output line by line; closing the generator early ends the command."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
            command = self.command(*arguments)
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8", errors="replace"
            )
            assert process.stdout is not None
            try:
                yield from process.stdout
            except BaseException:
                # The reader has enough, and a quiet pod's next line may never arrive.
                process.terminate()
                raise
            finally:
                process.stdout.close()
                code = process.wait()
            if code:
                errors.seek(0)
                words = errors.read().strip() or f"kubectl {' '.join(arguments)} failed"
                raise KubectlError(in_our_words(words, self.namespace))

    def command(self, *arguments: str) -> list[str]:
        """Return the whole command line."""
        program = shutil.which("kubectl")
        if program is None:
            raise KubectlError(
                "kubectl is not in the PATH; install it (https://kubernetes.io/docs/tasks/tools)"
            )
        namespace = (f"--namespace={self.namespace}",) if self.namespace else ()
        return [program, *self.flags, *namespace, *arguments]

    def names(self, kind: str) -> list[str]:
        """Return the names of a kind, or of the kubeconfig's contexts; empty if kubectl fails."""
        try:
            if kind == "contexts":
                return self.text("config", "get-contexts", "--output=name").split()
            found = self.text("get", kind, "--output=name").split()
        except KubectlError:
            return []
        return [name.rpartition("/")[2] for name in found]

    @contextmanager
    def port_forward(self, target: str, port: int) -> Iterator[str]:
        """Yield the base URL of a Service's or pod's port on this machine, as long as the block
        runs."""
        process = subprocess.Popen(
            self.command("port-forward", target, f":{port}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            found = _FORWARDED.search(process.stdout.readline())
            if found is None:
                process.terminate()
                words = process.stderr.read().strip() or f"{target} cannot be reached"
                raise KubectlError(in_our_words(words, self.namespace))
            yield f"http://127.0.0.1:{found.group(1)}"
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()
            process.stderr.close()
