"""A real server with flags that other servers' users bring: TLS, keys, names, a prefix, a file."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.self_signed import write_certificate
from tests.support.server.server_process import ServerProcess, server_process

TEMPLATE = (
    "{% if shout %}SHOUT {% endif %}{% for message in messages %}"
    "{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)
FILE = """
num-kv-blocks: 400
max-model-len: 512
served-model-name: [of-the-file]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("flags")
    write_certificate(found)
    (found / "server.yaml").write_text(FILE)
    (found / "template.jinja").write_text(TEMPLATE)
    return found


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    checkpoint = make_tiny_checkpoint(folder / "qwen3")
    with server_process(
        checkpoint, folder / "log",
        "--config", str(folder / "server.yaml"), "--served-model-name", "small", "qwen",
        "--ssl-certfile", str(folder / "cert.pem"), "--ssl-keyfile", str(folder / "key.pem"),
        "--api-key", "first-key", "second-key", "--root-path", "/models/small",
        "--chat-template", str(folder / "template.jinja"),
        "--default-chat-template-kwargs", '{"shout": true}', "--dtype", "float",
        "--uvicorn-log-level", "warning", "--trust-remote-code", "--disable-log-requests",
    ) as started:  # fmt: skip
        yield started.wait_ready()


@pytest.fixture(scope="module")
def http(server: ServerProcess, folder: Path) -> Iterator[httpx.Client]:
    trusted = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    headers = {"authorization": "Bearer second-key"}
    with httpx.Client(base_url=server.url, verify=trusted, headers=headers, timeout=60) as client:
        yield client


def test_the_port_is_https_and_plain_http_is_not_answered(
    server: ServerProcess, http: httpx.Client
) -> None:
    assert http.get("/health").status_code == 200
    assert f"https://127.0.0.1:{server.port}" in server.log
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{server.port}/health")


def test_each_key_opens_and_another_does_not(http: httpx.Client) -> None:
    for key, status in (("first-key", 200), ("second-key", 200), ("third-key", 401), ("x", 401)):
        headers = {"authorization": f"Bearer {key}"}
        assert http.get("/v1/models", headers=headers).status_code == status


def test_every_name_is_served_and_the_first_is_told(http: httpx.Client) -> None:
    listed = [card["id"] for card in http.get("/v1/models").json()["data"]]
    assert listed == ["small", "qwen"]
    for name in listed:
        assert http.get(f"/v1/models/{name}").json()["id"] == name
        body = {"model": name, "prompt": "a", "max_tokens": 1}
        assert http.post("/v1/completions", json=body).json()["model"] == "small"
    other = http.post("/v1/completions", json={"model": "of-the-file", "prompt": "a"})
    assert other.status_code == 404
    assert "this server has 'small' and 'qwen'" in other.json()["error"]["message"]


def test_the_prefix_of_a_proxy_is_taken_off_or_was(http: httpx.Client) -> None:
    for path in ("/v1/models", "/models/small/v1/models"):
        assert http.get(path).status_code == 200
    assert http.get("/models/small/health").status_code == 200
    (server,) = http.get("/openapi.json").json()["servers"]
    assert server["url"] == "/models/small"
    body = {"prompt": "a", "max_tokens": 1}
    assert http.post("/models/small/v1/completions", json=body).status_code == 200
    unknown = http.get("/models/small/v1/models", headers={"authorization": "Bearer no"})
    assert unknown.status_code == 401


def test_the_file_of_flags_and_vllms_values_count(http: httpx.Client) -> None:
    assert http.get("/v1/models").json()["data"][0]["max_model_len"] == 512
    info = http.get("/server_info").json()
    assert info["num_blocks"] == 400
    assert info["dtype"] == "float32"
    assert "key" not in http.get("/server_info").text


def test_what_has_no_effect_is_logged_and_no_key_is(server: ServerProcess) -> None:
    for flag in ("--uvicorn-log-level", "--trust-remote-code", "--disable-log-requests"):
        assert f"the flag {flag} has no effect: " in server.log
    assert "--api-key: a key on the command line is seen by everybody" in server.log
    assert "first-key" not in server.log
    assert "second-key" not in server.log


def test_default_variables_reach_the_template_unless_a_request_has_its_own(
    http: httpx.Client,
) -> None:
    messages = [{"role": "user", "content": "a"}]

    def prompt_of(**fields: object) -> str:
        tokens = http.post("/tokenize", json={"messages": messages, **fields}).json()["tokens"]
        text: str = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
        return text

    assert prompt_of().startswith("SHOUT user")
    assert prompt_of(chat_template_kwargs={"shout": False}).startswith("user")


def test_openais_client_streams_over_tls(server: ServerProcess, folder: Path) -> None:
    trusted = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    with (
        httpx.Client(verify=trusted) as transport,
        OpenAI(
            base_url=f"{server.url}/models/small/v1",
            api_key="first-key",
            max_retries=0,
            http_client=transport,
        ) as client,
    ):
        stream = client.chat.completions.create(
            model="qwen", messages=[{"role": "user", "content": "hi"}], max_tokens=8, stream=True
        )
        chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert {chunk.model for chunk in chunks} == {"small"}
