"""A hub model gets into a folder whole or not at all, whatever happens on the way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from atom.model_source.snapshot_folder import MARKER, read_marker
from atom.model_source.unused_folders import MARK
from tests.support.server.hub_server import COMMIT, HubServer
from tests.support.server.server_process import command_environment
from tests.support.waiting import HANG_SECONDS, wait_until

MODEL = "acme/tiny"
MIB = 1 << 20
WEIGHTS = os.urandom(MIB) * 24
FILES = {
    "config.json": b'{"architectures": ["Qwen3ForCausalLM"]}',
    "model.safetensors": WEIGHTS[: MIB // 2],
    "tokenizer.json": b"{}",
    "modeling_acme.py": b"raise SystemExit('code of the repository was run')",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"the same weights again",
}
# More weights than a client reads ahead, for what happens in the middle of a file.
LARGE = {**FILES, "model.safetensors": WEIGHTS}
SERVED = {"config.json", "model.safetensors", "tokenizer.json"}


def start(hub: HubServer, folder: Path, *flags: str, **variables: str) -> subprocess.Popen[str]:
    environment = {
        **command_environment(),
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder.parent / "hf-home"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        **variables,
    }
    if "HF_TOKEN" not in variables:
        environment.pop("HF_TOKEN", None)
    command = [sys.executable, "-m", "atom.entrypoints.download", "--model", MODEL]
    return subprocess.Popen(
        [*command, "--folder", str(folder), *flags],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(hub: HubServer, folder: Path, *flags: str, **variables: str) -> tuple[int, str, str]:
    process = start(hub, folder, *flags, **variables)
    out, err = process.communicate(timeout=HANG_SECONDS)
    return process.returncode, out, err


def test_a_model_is_fetched_once_and_without_its_code(tmp_path: Path) -> None:
    folder, message = tmp_path / "acme--tiny" / "main", tmp_path / "message"
    message.touch()
    with HubServer(MODEL, FILES) as hub:
        code, out, err = run(hub, folder, ATOM_TERMINATION_LOG=str(message))
        assert code == 0, err
        asked = len(hub.requests)
        code, again, err = run(hub, folder)
        assert code == 0, err
        assert len(hub.requests) == asked, "a complete folder needs no hub"
    assert {path.name for path in folder.iterdir() if path.is_file()} == {*SERVED, MARKER}
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    marked = read_marker(folder)
    assert marked is not None
    assert (marked.commit, {file.name for file in marked.files}) == (COMMIT, SERVED)
    said = json.loads(out)
    assert (said["commit"], said["bytes"]) == (COMMIT, sum(len(FILES[name]) for name in SERVED))
    assert json.loads(message.read_text()) == said
    assert json.loads(again)["commit"] == COMMIT


def test_a_killed_download_goes_on_with_the_files_that_are_missing(tmp_path: Path) -> None:
    folder, first, second = (
        tmp_path / "main",
        "model-1-of-2.safetensors",
        "model-2-of-2.safetensors",
    )
    shards = {"config.json": b"{}", first: WEIGHTS[: 4 * MIB], second: WEIGHTS}
    with HubServer(MODEL, shards, gate_after={second: 22 * MIB}) as hub:
        process = start(hub, folder)
        assert hub.reached_gate.wait(HANG_SECONDS)
        wait_until((folder / first).is_file, "the first shard")
        process.kill()
        process.communicate()
        assert read_marker(folder) is None
        hub.gate_after.clear()
        hub.gate.set()
        hub.requests.clear()
        code, _, err = run(hub, folder)
        assert code == 0, err
        assert not [line for line in hub.requests if line.startswith("GET") and first in line]
    assert (folder / second).read_bytes() == WEIGHTS
    assert not list(folder.rglob("*.incomplete"))


def test_progress_is_told_while_it_downloads(tmp_path: Path) -> None:
    folder = tmp_path / "main"
    with HubServer(MODEL, LARGE, gate_after={"model.safetensors": 22 * MIB}) as hub:
        process = start(hub, folder, "--status-port", "0")
        assert process.stderr is not None
        lines = (re.search(r"progress is told on port (\d+)", line) for line in process.stderr)
        port = int(next(found[1] for found in lines if found))
        assert hub.reached_gate.wait(HANG_SECONDS)
        wait_until(lambda: health(port)["progress"]["fraction"] >= 0.4, "some progress")
        said = health(port)
        assert said["status"] == "starting"
        assert said["progress"]["phase"] == "downloading weights"
        assert said["progress"]["bytes_total"] == sum(len(LARGE[name]) for name in SERVED)
        hub.gate.set()
        _, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, err


def test_two_downloads_into_one_folder_take_turns(tmp_path: Path) -> None:
    folder = tmp_path / "main"
    with HubServer(MODEL, LARGE, gate_after={"model.safetensors": 22 * MIB}) as hub:
        first = start(hub, folder)
        assert hub.reached_gate.wait(HANG_SECONDS)
        second = start(hub, folder)
        assert second.stderr is not None
        assert any("waiting for it" in line for line in second.stderr)
        hub.gate.set()
        assert first.wait(HANG_SECONDS) == second.wait(HANG_SECONDS) == 0
        fetched = [
            line for line in hub.requests if line.startswith("GET") and "safetensors" in line
        ]
        first.communicate()
        second.communicate()
    assert len(fetched) == 1


def test_wrong_bytes_are_refused_and_fetched_again_by_the_next_attempt(tmp_path: Path) -> None:
    folder = tmp_path / "main"
    with HubServer(MODEL, FILES, damaged={"model.safetensors"}) as hub:
        code, _, err = run(hub, folder)
        assert code == 1
        assert "has the hash" in err.splitlines()[-1]
        assert read_marker(folder) is None
        hub.damaged.clear()
        code, _, err = run(hub, folder)
        assert code == 0, err
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_a_complete_folder_that_lost_a_file_is_completed(tmp_path: Path) -> None:
    folder = tmp_path / "main"
    with HubServer(MODEL, FILES) as hub:
        assert run(hub, folder)[0] == 0
        (folder / "tokenizer.json").unlink()
        code, _, err = run(hub, folder)
        assert code == 0, err
    assert (folder / "tokenizer.json").read_bytes() == b"{}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("hub", "flags", "variables", "words"),
    [
        ({}, ["--revision", "v9"], {}, "has no revision 'v9'"),
        ({"token": "hf_right"}, [], {}, "no token is given"),
        ({"token": "hf_right"}, [], {"HF_TOKEN": "hf_wrong"}, "accept its terms at"),
        ({"files": {"config.json": b"{}"}}, [], {}, "has no safetensors files"),
    ],
    ids=["revision", "401", "403", "no weights"],
)
def test_a_refusal_says_the_remedy_in_one_line(
    hub: dict[str, Any], flags: list[str], variables: dict[str, str], words: str, tmp_path: Path
) -> None:
    with HubServer(MODEL, **{"files": FILES, **hub}) as server:
        code, _, err = run(server, tmp_path / "main", *flags, **variables)
    assert code == 1
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    assert words in last
    assert "hf_" not in err, "a token is never shown"


def test_a_token_opens_a_gated_model(tmp_path: Path) -> None:
    with HubServer(MODEL, FILES, token="hf_right") as hub:
        code, _, err = run(hub, tmp_path / "main", HF_TOKEN="hf_right")
    assert code == 0, err


_TWICE = """
import sys
from pathlib import Path
from atom.checkpoint import download
from atom.errors import ModelError
model, token = sys.argv[1], Path(sys.argv[2])
try:
    download(model, ["config.json"])
except ModelError:
    print("refused")
token.write_text("hf_right")
print((download(model, ["config.json"]) / "config.json").is_file())
"""


def test_an_engine_reads_a_token_in_a_file_anew_for_what_it_downloads_next(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("hf_wrong")
    environment = {name: text for name, text in command_environment().items() if name != "HF_TOKEN"}
    with HubServer(MODEL, FILES, token="hf_right") as hub:
        asked = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "home"),
            "HF_TOKEN_PATH": str(token),
        }
        done = subprocess.run(
            [sys.executable, "-c", _TWICE, MODEL, token],
            env={**environment, **asked},
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
    assert done.stdout.splitlines() == ["refused", "True"], done.stderr


def test_a_hub_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    with HubServer(MODEL, FILES) as hub:
        url = hub.url
    code, _, err = run(hub, tmp_path / "main", HF_ENDPOINT=url)
    assert code == 1
    assert url in err.splitlines()[-1]


# ---- helpers ------------------------------------------------------------------------------------


def health(port: int) -> dict[str, Any]:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=HANG_SECONDS)
    except urllib.error.HTTPError as answer:
        return dict(json.load(answer))
    raise AssertionError("a download is never healthy")


def _unused(root: Path, owner: str) -> Path:
    folder = root / "acme--old" / "main"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * 1000)
    (folder / MARK).write_text(json.dumps({"owners": {owner: 1.0}}))
    return folder


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kept", [True, False])
def test_a_download_removes_what_the_claim_has_and_nothing_uses(tmp_path: Path, kept: bool) -> None:
    root = tmp_path / "models"
    old = _unused(root, "claim")
    folder = root / "acme--tiny" / "main"
    flags = ["--prune", "Always", "--claim-root", str(root), "--as-of", str(time.time())]
    flags += ["--keep", "acme--old/main"] if kept else []
    with HubServer(MODEL, FILES) as hub:
        code, out, err = run(hub, folder, *flags, ATOM_CLAIM_UID="claim")
    assert code == 0, err
    said = json.loads(out)
    assert old.exists() == kept
    assert said.get("removed", []) == ([] if kept else ["acme--old/main"])
    assert (said.get("removedBytes", 0) > 1000) != kept
    assert "claim" in json.loads((folder / MARK).read_text())["owners"]


def test_a_claim_with_room_keeps_what_nothing_uses(tmp_path: Path) -> None:
    root = tmp_path / "models"
    old = _unused(root, "claim")
    flags = ["--prune", "WhenFull", "--claim-root", str(root), "--as-of", str(time.time())]
    with HubServer(MODEL, FILES) as hub:
        code, _, err = run(hub, root / "acme--tiny" / "main", *flags, ATOM_CLAIM_UID="claim")
    assert code == 0, err
    assert old.exists()


@pytest.mark.parametrize(
    ("flags", "uid", "words"),
    [
        (["--claim-root", "ROOT"], "claim", "needs --claim-root, --as-of"),
        (["--claim-root", "ROOT", "--as-of", "1"], "", "needs --claim-root, --as-of"),
        (["--claim-root", "/", "--as-of", "1"], "claim", "must be two folders below"),
    ],
)
def test_nothing_is_removed_where_the_claim_is_not_known(
    tmp_path: Path, flags: list[str], uid: str, words: str
) -> None:
    root = tmp_path / "models"
    old = _unused(root, "claim")
    given = [str(root) if flag == "ROOT" else flag for flag in flags]
    with HubServer(MODEL, FILES) as hub:
        folder = root / "acme--tiny" / "main"
        code, _, err = run(hub, folder, "--prune", "Always", *given, ATOM_CLAIM_UID=uid)
    assert code == 1
    assert words in err
    assert old.exists()
