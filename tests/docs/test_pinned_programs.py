"""The versions of other people's programs that the pages name are those that the tests run."""

from __future__ import annotations

import re

import pytest

from tools.agents import AGENTS, JS_CLIENTS, Agent, NpmPackage
from tools.pinned_environments import REQUIREMENTS

GUIDES = REQUIREMENTS.parent / "docs" / "guides"
NPM = "".join(f"{each.package}=={each.version}\n" for each in JS_CLIENTS)
PINS = NPM + "\n".join(path.read_text() for path in sorted(REQUIREMENTS.glob("*.in")))
ROWS = re.findall(r"^\| ([\w-]+) \| (\d[\d.]*) \|", (GUIDES / "clients.md").read_text(), re.M)


@pytest.mark.parametrize(("package", "version"), ROWS)
def test_a_program_of_pypi_is_pinned_as_the_page_says(package: str, version: str) -> None:
    pin = rf"^{re.escape(package)}(\[[\w,]+\])?=={re.escape(version)}(\s|$)"
    assert re.search(pin, PINS, re.MULTILINE), f"{package} {version} is in no requirements/*.in"


def test_every_pinned_program_is_on_the_page() -> None:
    names = ("clients", "load", "vllm-bench", "routers")
    pins = "".join((REQUIREMENTS / f"{name}.in").read_text() for name in names)
    pinned = re.findall(r"^([\w-]+)(?:\[[\w,]+\])?==([\d.]+)", pins, re.MULTILINE)
    page = (GUIDES / "clients.md").read_text()
    assert pinned
    assert [name for name, version in pinned if name not in page or version not in page] == []


@pytest.mark.parametrize("agent", AGENTS, ids=[agent.command for agent in AGENTS])
def test_the_page_of_agents_names_the_version_that_runs(agent: Agent) -> None:
    assert f"({agent.version})" in (GUIDES / "agents.md").read_text()


@pytest.mark.parametrize("client", JS_CLIENTS, ids=[client.package for client in JS_CLIENTS])
def test_the_page_of_clients_names_the_npm_package_that_runs(client: NpmPackage) -> None:
    row = rf"^\| {client.package} \| {re.escape(client.version)} \|"
    page = (GUIDES / "clients.md").read_text()
    assert re.search(row, page, re.MULTILINE)
