"""A model of a bucket is served, fetched and looked at, through a real server of S3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server.s3_server import fill_bucket, s3_server
from tests.support.server.server_process import command_environment

pytestmark = pytest.mark.slow
TINY = Path(__file__).parents[5] / "examples" / "models" / "atom-tiny"
MODEL = "s3://models/acme/tiny"
MIB = 1 << 20


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server() as variables:
        fill_bucket(variables, "models", "acme/tiny", TINY)
        large = tmp_path_factory.mktemp("large")
        (large / "model.safetensors").write_bytes(os.urandom(MIB) * 24)
        fill_bucket(variables, "parts", "", large)
        yield variables


def run(bucket: dict[str, str], *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**command_environment(), **bucket, **more}
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_job_fetches_it_and_marks_the_folder(bucket: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    words = ("atom.entrypoints.download", "--model", MODEL, "--folder", str(folder))
    done = run(bucket, *words)
    assert done.returncode == 0, done.stderr
    weights = (folder / "model.safetensors").read_bytes()
    assert weights == (TINY / "model.safetensors").read_bytes()
    said = json.loads(done.stdout)
    away = run({**bucket, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, *words)
    assert json.loads(away.stdout)["commit"] == said["commit"], "a whole folder needs no bucket"


def test_an_object_of_several_parts_comes_whole(bucket: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "large"
    words = ("atom.entrypoints.download", "--model", "s3://parts", "--folder", str(folder))
    done = run(bucket, *words)
    assert done.returncode == 0, done.stderr
    assert (folder / "model.safetensors").stat().st_size == 24 * MIB


def test_a_look_needs_no_weights(bucket: dict[str, str]) -> None:
    done = run(bucket, "atom.entrypoints.inspect_model", "--model", MODEL)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"] == MODEL


def test_an_engine_downloads_it_for_itself(bucket: dict[str, str], tmp_path: Path) -> None:
    words = ("atom.entrypoints.cli", "generate", MODEL, "--prompt", "Hello", "--max-tokens", "4")
    done = run(bucket, *words, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "atom" / "s3" / "models--acme--tiny" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("s3://nowhere/acme/tiny", "s3://nowhere/acme/tiny could not be read"),
        ("s3://models/acme/other", "s3://models/acme/other has no safetensors files"),
    ],
)
def test_a_refusal_is_one_line_without_secrets(
    bucket: dict[str, str], model: str, words: str, tmp_path: Path
) -> None:
    done = run(
        bucket, "atom.entrypoints.download", "--model", model, "--folder", str(tmp_path / "f")
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: {words}")
    assert bucket["AWS_SECRET_ACCESS_KEY"] not in done.stderr
