"""The adapters of --lora-modules-file: loaded and unloaded as the file changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atom.entrypoints.flags.flag_parser import FlagParser
from atom.entrypoints.serve import add_serve_arguments
from atom.entrypoints.serve_options import server_options
from atom.errors import ConfigError, RequestError
from atom.lora_config import LoraConfig, LoraModule
from atom.model_engine.front.loras.followed_loras import FollowedLoras
from atom.model_engine.front.loras.served_loras import ServedLora, ServedLoras
from atom_operator.cluster.engine_http import HttpEngines
from tests.support.models.lora_adapter import make_adapter
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.server_process import ServerProcess, server_process
from tests.support.waiting import wait_until


class Engine:
    """Serves what it is told, but for paths that are `broken`."""

    def __init__(self) -> None:
        self.served = ServedLoras(LoraConfig(max_cpu_loras=2, may_load=True), "base")
        self.broken: dict[str, str] = {}
        self.tries = 0

    @property
    def loras(self) -> Iterator[ServedLora]:
        return iter(self.served)

    async def load(self, module: LoraModule, *, in_place: bool = False) -> None:
        self.tries += 1
        self.served.check_new(module, in_place=in_place)
        if module.path in self.broken:
            raise RequestError(self.broken[module.path])
        self.served.add(self.served.numbered(module))

    async def unload(self, name: str) -> None:
        self.served.remove(name)


class Followed:
    def __init__(self, file: Path) -> None:
        self.file, self.engine, self.now = file, Engine(), 0.0
        self.loras = FollowedLoras(file, self.engine, ("base",), lambda: self.now)

    def says(self, **paths: str) -> list[dict[str, Any]]:
        self.file.write_text(json.dumps([{"name": n, "path": p} for n, p in paths.items()]))
        return self.turn()

    def turn(self) -> list[dict[str, Any]]:
        asyncio.run(self.loras.turn())
        return self.loras.told()

    @property
    def served(self) -> dict[str, str]:
        return {lora.name: lora.root for lora in self.engine.loras}


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path / "adapters.json")


def test_what_the_file_names_is_served_and_nothing_else(followed: Followed) -> None:
    assert followed.turn() == []  # there is no file yet
    told = followed.says(sql="/sql", legal="/legal")
    assert [each["state"] for each in told] == ["loaded", "loaded"]
    followed.says(legal="/legal", new="/new")  # as many as there is room for, one of them gone
    assert followed.served == {"legal": "/legal", "new": "/new"}
    tries = followed.engine.tries
    followed.turn()
    assert followed.engine.tries == tries
    followed.says()
    assert followed.served == {}


def test_a_new_path_takes_the_place_of_the_old_one(followed: Followed) -> None:
    followed.says(sql="/sql", other="/other")
    number = followed.engine.served.get("sql")
    followed.engine.broken["/broken"] = "is no adapter"
    told = followed.says(sql="/broken", other="/other")
    assert told[0]["state"] == "refused"
    assert told[0]["message"] == "is no adapter; requests still get /sql"
    assert followed.engine.served.get("sql") == number
    followed.says(sql="/sql/2", other="/other")
    assert followed.served == {"sql": "/sql/2", "other": "/other"}
    assert followed.engine.served.get("sql") != number, "cached prefixes are those of a number"


def test_what_cannot_be_served_stops_nothing_else_and_is_tried_again(followed: Followed) -> None:
    followed.engine.broken["/late"] = "no such folder"
    told = followed.says(late="/late", sql="/sql", base="/base")
    assert [each["state"] for each in told] == ["refused", "loaded", "refused"]
    assert told[0]["message"] == "no such folder"
    assert "the model's own name" in told[2]["message"]
    del followed.engine.broken["/late"]
    assert followed.turn()[0]["state"] == "refused", "it is not tried at every turn"
    followed.now += 5
    assert followed.turn()[0]["state"] == "loaded"


@pytest.mark.parametrize("text", ["", "{}", '[{"name": "a"}]', '[{"name": "a", "pat": "b"}]'])
def test_what_is_no_list_of_adapters_changes_nothing(followed: Followed, text: str) -> None:
    followed.says(sql="/sql")
    followed.file.write_text(text)
    followed.turn()
    followed.file.unlink()
    followed.turn()
    assert followed.served == {"sql": "/sql"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "needs --enable-lora"),
        (("--enable-lora", "--lora-modules", "a=/a"), "leave out --lora-modules"),
        (("--enable-lora", "--allow-runtime-lora-updating"), "leave out --lora-modules"),
        (("--enable-lora", "--api-server-count", "2"), "one HTTP process"),
    ],
)
def test_flags_that_contradict_the_file_are_refused(flags: tuple[str, ...], words: str) -> None:
    parser = FlagParser()
    add_serve_arguments(parser)
    args = parser.parse_args(["--model", "m", "--lora-modules-file", "f.json", *flags])
    with pytest.raises(ConfigError, match=words):
        server_options(args)


def test_a_server_follows_its_file_beside_requests(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model")
    for number in range(2):
        make_adapter(tmp_path / str(number), checkpoint, rank=3, seed=number)
    file = tmp_path / "adapters.json"

    def says(**paths: str) -> None:
        new = tmp_path / "new.json"
        new.write_text(json.dumps([{"name": n, "path": p} for n, p in paths.items()]))
        new.rename(file)

    says(first=str(tmp_path / "0"), late=str(tmp_path / "late"))
    flags = ("--enable-lora", "--max-cpu-loras", "2", "--lora-modules-file", str(file))
    with server_process(checkpoint, tmp_path / "log", *flags, "--num-kv-blocks", "64") as server:
        server.wait_ready()
        first = _text(server, "first")  # with the first request that it takes
        assert first != _text(server, "tiny")
        states = asyncio.run(_ask(server))
        assert states == {"first": ("loaded", ""), "late": ("refused", states["late"][1])}
        assert "no such folder" in states["late"][1]
        refused = server.post("/v1/unload_lora_adapter", lora_name="first")
        assert refused.status_code == 403
        assert "--lora-modules-file" in refused.json()["error"]["message"]

        says(first=str(tmp_path / "1"))
        wait_until(lambda: _text(server, "first") != first, "the adapter of the new path")
        assert asyncio.run(_ask(server)) == {"first": ("loaded", "")}


def _text(server: ServerProcess, model: str) -> str:
    answer = server.post("/v1/completions", model=model, prompt="Once", max_tokens=8, temperature=0)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


async def _ask(server: ServerProcess) -> dict[str, tuple[str, str]]:
    """As the operator asks."""
    engines = HttpEngines(server.port)
    try:
        told = await engines.adapters("127.0.0.1")
    finally:
        await engines.close()
    assert told is not None
    return {each.name: (each.state, each.message) for each in told}
