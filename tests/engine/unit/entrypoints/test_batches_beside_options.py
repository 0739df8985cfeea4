"""--batch-dir beside each other option of a server, alone and in pairs: it is served where the line
is served without it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from atom.entrypoints.cli import build_parser
from atom.entrypoints.serve_options import models_of, server_options
from atom.errors import ConfigError

PARSER = build_parser()
SECRET = "a secret that replicas share"
KEYS = "ada: key-of-ada\nbob: key-of-bob\n"
# Each option of the start that decides who answers requests, or when.
WORDS: Mapping[str, tuple[str, ...]] = {
    "models": ("--models", "models.yaml"),
    "workers": ("--worker-urls", "http://127.0.0.1:1", "--handover-secret-file", "secret"),
    "processes": ("--api-server-count", "2"),
    "keys": ("--api-key-file", "keys"),
    "handover": ("--handover-url", "http://127.0.0.1:1", "--handover-secret-file", "secret"),
    "sleep": ("--enable-sleep-mode",),
    "held": ("--enable-sleep-mode", "--sleep-queue"),
    "idle": ("--enable-sleep-mode", "--sleep-idle-seconds", "5"),
    "adapters": ("--enable-lora", "--lora-modules", "a=/adapters/a"),
    "role": ("--kv-transfer-config", '{"kv_role": "kv_producer"}'),
    "pooling": ("--runner", "pooling"),
    "ranks": ("--data-parallel-size", "2"),
    "prefix": ("--root-path", "/models/small"),
    "header": ("--fairness-header", "x-tenant"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("secret").write_text(SECRET)
    Path("keys").write_text(KEYS)
    entries = [{"name": n, "model": f"/models/{n}", "options": {"gpu-memory-utilization": 0.4}}
               for n in ("one", "two")]  # fmt: skip
    Path("models.yaml").write_text(yaml.safe_dump(entries))
    return tmp_path


def start(names: tuple[str, ...], *more: str) -> str | None:
    """Read the options of a line, as the start does; the error that ends it, or None."""
    words = [word for name in names for word in WORDS[name]]
    model = [] if "models" in names else ["--model", "m"]
    args = PARSER.parse_args(["serve", *model, "--device", "cpu", *words, *more])
    try:
        found = (
            [each.options for each in models_of(args)]
            if args.models is not None
            else [server_options(args)]
        )
    except ConfigError as error:
        return str(error)
    if more:
        assert {each.limits.batches.folder for each in found} == {Path("b").absolute()}
    return None


PAIRS = [names for size in (1, 2) for names in itertools.combinations(WORDS, size)]


@pytest.mark.parametrize("names", PAIRS, ids="+".join)
def test_batches_go_with_every_line_that_is_served(names: tuple[str, ...]) -> None:
    without, beside = start(names), start(names, "--batch-dir", "b")
    if without is not None:
        assert beside is not None, "a line that is refused is refused with batches too"
    else:
        assert beside is None


def test_the_models_of_a_server_share_its_batches(folder: Path) -> None:
    entries = yaml.safe_load(Path("models.yaml").read_text())
    entries[0]["options"]["batch-dir"] = "of-one"
    Path("models.yaml").write_text(yaml.safe_dump(entries))
    told = start(("models",))
    assert told is not None
    assert "batch-dir" in told
