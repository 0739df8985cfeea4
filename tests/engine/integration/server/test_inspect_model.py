"""A model's config.json is reported without its weights, from wherever the model is."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib
from pathlib import Path

from tests.support.server.hub_server import HubServer
from tests.support.server.server_process import command_environment
from tests.support.waiting import HANG_SECONDS

CONFIG = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 128, "layer_types": ["full"] * 64}
CONFIG_BYTES = json.dumps(CONFIG).encode()


def run(*flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "atom.entrypoints.inspect_model", *flags],
        env={**command_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


def unpacked(text: str) -> object:
    return json.loads(zlib.decompress(base64.b64decode(json.loads(text)["config"])))


def test_a_folder_is_read_and_the_answer_is_left_for_kubernetes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(CONFIG_BYTES)
    message = tmp_path / "message"
    message.touch()
    done = run("--model", str(tmp_path), ATOM_TERMINATION_LOG=str(message))
    assert done.returncode == 0, done.stderr
    assert unpacked(done.stdout) == unpacked(message.read_text()) == CONFIG


def test_only_the_config_is_fetched_from_the_hub(tmp_path: Path) -> None:
    files = {"config.json": CONFIG_BYTES, "model.safetensors": b"weights"}
    with HubServer("acme/tiny", files, token="hf_right") as hub:
        variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_TOKEN": "hf_right"}
        done = run("--model", "acme/tiny", "--revision", "main", **variables)
        assert done.returncode == 0, done.stderr
        assert unpacked(done.stdout) == CONFIG
        assert not [line for line in hub.requests if "safetensors" in line]


def test_the_quantisation_beside_an_older_config_is_fetched_too(tmp_path: Path) -> None:
    told = {"quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    files = {"config.json": CONFIG_BYTES, "hf_quant_config.json": json.dumps(told).encode()}
    with HubServer("acme/tiny", files) as hub:
        done = run("--model", "acme/tiny", HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    assert unpacked(done.stdout) == {**CONFIG, "quantization_config": section}


def test_a_fault_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    done = run("--model", str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert "has no config.json" in done.stderr.splitlines()[-1]
    (tmp_path / "config.json").write_text(json.dumps({"noise": [str(i**9) for i in range(4000)]}))
    done = run("--model", str(tmp_path))
    assert done.returncode == 1
    assert "spec.model.configRef" in done.stderr.splitlines()[-1]
