"""Servers that have a role each: one computes prompts, another answers, and a third may divide
requests over both."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.server.server_process import PEERS, ServerProcess, server_process

FLAGS = ("--max-model-len", "1024", "--num-kv-blocks", "256", "--max-num-seqs", "8")
PRODUCER, CONSUMER = ROLES = ("kv_producer", "kv_consumer")


def role_flags(role: str, extra: Mapping[str, Any] | None = None, **fields: Any) -> tuple[str, str]:
    """Return the flag of a role with its document, on any free port. extra: more of the connector's
    own fields; fields: more of the document."""
    own = {"side_channel_port": 0, "kv_recompute_threshold": 16, **(extra or {})}
    document = {**fields, "kv_role": role, "kv_connector_extra_config": own}
    return "--kv-transfer-config", json.dumps(document)


@contextlib.contextmanager
def role_servers(
    model: Path,
    folder: Path,
    *flags: str,
    extra: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Start a producer and a consumer, with the engine ids engine-ROLE and the logs ROLE.log in the
    folder. extra, fields: of `role_flags`."""
    with contextlib.ExitStack() as stack:

        def serve(role: str) -> ServerProcess:
            own = role_flags(role, extra, engine_id=f"engine-{role}", **fields)
            log = folder / f"{role}.log"
            return stack.enter_context(server_process(model, log, *FLAGS, *flags, *own))

        producer, consumer = map(serve, ROLES)
        yield producer.wait_ready(), consumer.wait_ready()


@contextlib.contextmanager
def divided_servers(
    model: Path,
    folder: Path,
    *flags: str,
    environment: Mapping[str, str] = PEERS,
    least_tokens: int = 128,
) -> Iterator[tuple[ServerProcess, ServerProcess, ServerProcess]]:
    """Start a frontend that divides prompts of so many tokens and more, a producer and a
    consumer."""
    with contextlib.ExitStack() as stack:

        def serve(name: str, *own: str) -> ServerProcess:
            log = folder / f"{name}.log"
            return stack.enter_context(
                server_process(model, log, *FLAGS, *flags, *own, environment=environment)
            )

        producer, consumer = (serve(role, *role_flags(role)) for role in ROLES)
        urls = ("--worker-urls", producer.url, consumer.url)
        front = serve("front", *urls, "--prefill-least-tokens", str(least_tokens))
        yield front.wait_ready(), producer.wait_ready(), consumer.wait_ready()


def complete(server: ServerProcess, prompt: str, **fields: Any) -> tuple[dict[str, Any], str]:
    """Return a completion of twelve tokens at most, and the server's word for where the prompt's
    pages came from."""
    asked = {"max_tokens": 12, "temperature": 0.0, "prompt": prompt, **fields}
    answer = server.post("/v1/completions", **asked)
    assert answer.status_code == 200, answer.text
    return answer.json(), answer.headers.get("x-atom-kv-transfer", "")
