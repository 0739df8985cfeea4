"""A server of S3 in a process of its own (moto's), and what clients need to know of it."""

from __future__ import annotations

import contextlib
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import obstore
from obstore.store import S3Store

from tests.engine.agents.session import check_installed
from tests.support.server.server_process import reserved_port
from tests.support.waiting import HANG_SECONDS, wait_until
from tools.pinned_environments import S3_SERVER, python_bin


@contextlib.contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Ends with the block, which gets the variables of a client's environment."""
    program = python_bin(S3_SERVER) / "moto_server"
    check_installed(program)
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}"
        command = [str(program), "--host", "127.0.0.1", "--port", str(port)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: _answers(url), "the server of S3 answers")
            yield {
                "AWS_ENDPOINT_URL": url,
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret-of-the-bucket",
            }
        finally:
            server.terminate()
            server.wait(HANG_SECONDS)


def fill_bucket(variables: Mapping[str, str], bucket: str, prefix: str, folder: Path) -> None:
    """Make a bucket that holds the files of a folder below a prefix, large ones in parts."""
    url = variables["AWS_ENDPOINT_URL"]
    made = urllib.request.Request(f"{url}/{bucket}", method="PUT")
    with urllib.request.urlopen(made, timeout=HANG_SECONDS):
        pass
    config = {name.lower(): value for name, value in variables.items()}
    store = S3Store(bucket, config=config, client_options={"allow_http": True})  # type: ignore[arg-type]
    for path in folder.iterdir():
        obstore.put(store, f"{prefix}/{path.name}", path, chunk_size=5 << 20)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=HANG_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
