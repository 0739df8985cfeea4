"""The files for machines without Kubernetes: a Compose file and a systemd unit, whose commands,
paths and health checks belong to this version."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom.entrypoints.cli import build_parser
from tests.support.server.server_process import START_SECONDS, command_environment, reserved_port
from tests.support.waiting import HANG_SECONDS, wait_until

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "examples" / "compose" / "compose.yaml"
UNIT = ROOT / "examples" / "systemd" / "atom.service"
SERVE = ROOT / "examples" / "systemd" / "serve.yaml"


def compose() -> dict[str, Any]:
    service: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]["atom"]
    return service


def unit() -> configparser.ConfigParser:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(UNIT)
    return found


def test_the_compose_file_builds_a_target_of_a_dockerfile_and_serves_its_model() -> None:
    service = compose()
    build = service["build"]
    dockerfile = ((COMPOSE.parent / build["context"]).resolve() / build["dockerfile"]).read_text()
    assert (COMPOSE.parent / build["context"]).resolve() == ROOT
    assert f" AS {build['target']}\n" in dockerfile
    options = build_parser().parse_args(["serve", *service["command"]])
    assert f"COPY examples/models/atom-tiny {options.model}\n" in dockerfile
    mounts = {each.split(":")[1] for each in service["volumes"]}
    assert options.download_dir in mounts
    (published,) = service["ports"]
    assert published == f"127.0.0.1:{options.port}:{options.port}", "open to others without a key"
    assert f":{options.port}/health" in service["healthcheck"]["test"][-1]


def test_the_unit_starts_a_command_with_flags_of_this_version(tmp_path: Path) -> None:
    service = unit()["Service"]
    program, command, flag, file = shlex.split(service["ExecStart"])
    assert (Path(program).name, command, flag) == ("atom", "serve", "--config")
    assert Path(file).name == SERVE.name
    options = build_parser().parse_args(["serve", flag, str(SERVE)])
    assert options.host == "127.0.0.1", "open to others without a key"
    assert options.download_dir == f"/var/cache/{service['CacheDirectory']}"
    wrong = tmp_path / "serve.yaml"
    wrong.write_text("max-modl-len: 4096\n")
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(["serve", flag, str(wrong)])
    assert str(ended.value.code) == service["RestartPreventExitStatus"]


def test_what_the_unit_starts_is_healthy_and_ends_as_the_unit_expects(tmp_path: Path) -> None:
    """Run the unit's flags with another model and port, and the Compose file's health check."""
    with reserved_port() as port:
        settings = yaml.safe_load(SERVE.read_text())
        model = str(ROOT / "examples" / "models" / "atom-tiny")
        settings |= {"model": model, "port": port, "download-dir": str(tmp_path / "cache")}
        file = tmp_path / "serve.yaml"
        file.write_text(yaml.safe_dump(settings))
        _, *words = shlex.split(unit()["Service"]["ExecStart"].replace("/etc/atom", str(tmp_path)))
        with (tmp_path / "log").open("w") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "atom.entrypoints.cli", *words],
                env=command_environment() | {"HOME": str(tmp_path)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            python, *check = compose()["healthcheck"]["test"][1:]
            assert python == "python3"
            check[-1] = check[-1].replace(":8000/", f":{port}/")

            def healthy() -> bool:
                assert server.poll() is None, (tmp_path / "log").read_text()
                asked = subprocess.run([sys.executable, *check], capture_output=True, check=False)
                return asked.returncode == 0

            wait_until(healthy, "the health check passes", seconds=START_SECONDS)
            server.send_signal(signal.SIGTERM)
            assert server.wait(HANG_SECONDS) == 0  # no failure that a unit would start again
        finally:
            server.kill()
            server.wait()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd checks its own form")
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "atom"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    changed = tmp_path / UNIT.name
    changed.write_text(UNIT.read_text().replace("/opt/atom/bin/atom", str(program)))
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(changed)],
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
        capture_output=True,
        text=True,
        check=False,
    )
    about = [line for line in found.stderr.splitlines() if UNIT.name in line]
    assert about == []
