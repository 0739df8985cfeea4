"""llm-d's endpoint picker behind Envoy, configured as the operator does: requests go where the
beginning of their prompt is cached, also after the picker or a server has died."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from atom_operator.children.endpoint_picker.picker_config import config_text
from atom_operator.integration_values import PickerProgram
from devcluster.errors import DevclusterError
from devcluster.programs.binaries import ensure_binaries
from devcluster.programs.llm_d_router import GROUP, PICKER
from devcluster.settings import read_settings
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.operator.builders_operator import plan
from tests.support.server.envoy import Envoy, envoy
from tests.support.server.envoy_document import Address
from tests.support.server.repeated_prompts import SHARE, RepeatedPrompts, beginnings
from tests.support.server.server_process import (
    SERVED_NAME,
    ServerProcess,
    reserved_port,
    server_process,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PODS, BLOCK = 3, 16
EVENTS, REPLAYS = 5557, 5558  # as the operator has them


@dataclass
class Pod:
    """A server at an address of its own, as a pod has one: pickers tell pods apart by it."""

    server: ServerProcess
    address: str

    @property
    def at(self) -> Address:
        return self.address, self.server.port

    def kill(self) -> None:
        for process in self.server.engine_processes():
            process.kill()
        self.server.process.kill()
        self.server.wait_exit()


@dataclass
class Picker:
    """The picker's process, which can be started again."""

    program: Path
    folder: Path
    grpc: int
    other_ports: tuple[int, int]
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return (self.folder / f"picker-{self.starts}.log").read_text()

    def start(self, replays: int) -> None:
        """Wait until it has read what `replays` servers have cached."""
        health, metrics = self.other_ports
        self.starts += 1
        command = [self.program, "--pool-name=tiny", "--pool-namespace=default"]
        command += [f"--grpc-port={self.grpc}", f"--grpc-health-port={health}"]
        command += [f"--metrics-port={metrics}", "--metrics-endpoint-auth=false"]
        command += [f"--config-file={self.folder / 'picker.yaml'}"]
        with (self.folder / f"picker-{self.starts}.log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

        self.wait_for_replays(replays)

    def wait_for_replays(self, count: int) -> None:
        """Of each server's events one, as it comes to know of it."""

        def has_read() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.grpc)):
                return self.log.count("Replay complete") >= count
            return False

        wait_until(has_read, f"the picker has read {count} servers' events")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass
class Cluster:
    """Servers, picker and gateway, and who asks them."""

    gateway: Envoy
    picker: Picker
    pods: list[Pod]
    spare: Pod  # that takes the place of one that dies
    folder: Path
    prompts: RepeatedPrompts


def tell_pods(folder: Path, pods: list[Pod]) -> None:
    """What the picker hears of an InferencePool's pods, as a file."""
    found = [
        {
            "name": f"pod-{pod.address.rpartition('.')[2]}",
            "address": pod.address,
            "port": str(pod.server.port),
            "labels": {"llm-d.ai/engine-type": "atom"},
        }
        for pod in pods
    ]
    temporary = folder / ".pods.yaml"
    temporary.write_text(yaml.safe_dump({"endpoints": found}))
    temporary.replace(folder / "pods.yaml")


def configuration(pods_file: Path, tokens_from: str) -> str:
    """The operator's, but that pods come from a file and tokens from this address."""
    document = yaml.safe_load(
        config_text(
            plan(
                gateway={"prefixAware": True},
                model={"source": "path:///models/tiny", "servedName": SERVED_NAME},
            ),
            PickerProgram(),
        )
    )
    for plugin in document["plugins"]:
        if plugin["type"] == "token-producer":
            plugin["parameters"]["vllm"]["url"] = tokens_from
    file = {"path": str(pods_file), "watchFile": True}
    document["plugins"].append({"type": "file-discovery", "parameters": file})
    document["dataLayer"]["discovery"] = {"pluginRef": "file-discovery"}
    return yaml.safe_dump(document)


@pytest.fixture(scope="module")
def start_pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Pod]]:
    folder = tmp_path_factory.mktemp("servers")
    model = make_tiny_checkpoint(folder / "model")
    with contextlib.ExitStack() as running:

        def start(number: int) -> Pod:
            address = f"127.0.1.{number}"
            events = {
                "enable_kv_cache_events": True,
                "buffer_steps": 4,  # fewer than there are: who comes late is told what is cached
                "endpoint": f"tcp://{address}:{EVENTS}",
                "replay_endpoint": f"tcp://{address}:{REPLAYS}",
                "topic": f"kv@pod-{number}@{SERVED_NAME}",
            }
            flags = ["--max-model-len", "512", "--block-size", str(BLOCK), "--host", "0.0.0.0"]
            flags += ["--kv-events-config", json.dumps(events)]
            log = folder / f"{number}.log"
            return Pod(running.enter_context(server_process(model, log, *flags)), address)

        yield start


def picker_program() -> Path:
    """Builds it; skips where a module cannot be had."""
    try:
        return ensure_binaries(read_settings(os.environ), [GROUP])[PICKER]
    except DevclusterError as error:
        pytest.skip(f"llm-d's endpoint picker cannot be built here: {error}")


@pytest.fixture(scope="module")
def cluster(
    start_pod: Callable[[int], Pod], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    program = picker_program()
    folder = tmp_path_factory.mktemp("picker")
    pods = [start_pod(number) for number in range(1, PODS + 2)]
    for pod in pods:
        pod.server.wait_ready()
    tell_pods(folder, pods[:PODS])
    with contextlib.ExitStack() as stack:
        grpc, health, metrics = (stack.enter_context(reserved_port()) for _ in range(3))
        picker = Picker(program, folder, grpc, (health, metrics))
        stack.callback(picker.kill)
        gateway = stack.enter_context(envoy([pod.at for pod in pods], ("127.0.0.1", grpc), folder))
        gateway.wait_for_servers(PODS + 1)
        (folder / "picker.yaml").write_text(configuration(folder / "pods.yaml", gateway.spread))
        picker.start(PODS)
        prompts = RepeatedPrompts(gateway.picked)
        yield Cluster(gateway, picker, pods[:PODS], pods[PODS], folder, prompts)


def test_repeats_go_where_they_are_cached(cluster: Cluster) -> None:
    prompts, known = cluster.prompts, beginnings("first")
    assert prompts.hits(known) == 0
    assert prompts.share(known) >= SHARE
    answered = [pod.server.metric("requests_finished_total") for pod in cluster.pods]
    assert max(answered) < prompts.asked  # new ones go to several
    assert prompts.failed == []


def test_a_picker_that_starts_anew_knows_what_is_cached(cluster: Cluster) -> None:
    prompts, known = cluster.prompts, beginnings("again")
    prompts.hits(known)
    cluster.picker.kill()
    # Without a picker the gateway takes the servers in turn, and all are answered.
    prompts.hits(beginnings("meanwhile"))
    cluster.picker.start(PODS)
    assert prompts.share(known) >= SHARE
    assert prompts.failed == []


def test_without_a_picker_repeats_go_anywhere(cluster: Cluster) -> None:
    """What the first test counts is the picker's work."""
    # Not a multiple of the servers, whose turns would then be those of the prompts.
    prompts, known = cluster.prompts, beginnings("chance")[: PODS + 2]
    cluster.picker.kill()
    prompts.hits(known)
    assert prompts.hits(known) / len(known) < SHARE
    cluster.picker.start(PODS)
    assert prompts.failed == []


def test_a_pod_that_dies_takes_no_request_with_it(cluster: Cluster) -> None:
    prompts, known = cluster.prompts, beginnings("dying")
    prompts.hits(known)
    gone, *left = cluster.pods
    gone.kill()
    prompts.hits(known)  # before the picker has heard of it
    cluster.pods = [*left, cluster.spare]
    tell_pods(cluster.folder, cluster.pods)
    cluster.gateway.wait_for_servers(PODS)
    cluster.picker.wait_for_replays(PODS + 1)
    prompts.hits(known)
    assert prompts.share(known) >= SHARE
    assert prompts.failed == []
