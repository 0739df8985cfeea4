"""Servers whose models are each divided over several ranks exchange pages over HTTP legs, and a
killed one costs a computation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint
from tests.support.processes import children_that_run
from tests.support.server.role_servers import complete, role_servers
from tests.support.server.server_process import ServerProcess

_SIZES = {"heads": 8, "kv_heads": 4, "max_position_embeddings": 1024}
_PROMPT = "The pages of this prompt are computed by two ranks and read by two other ones. " * 3
_LEG = {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}


def end_a_rank(producer: ServerProcess) -> None:
    """Kill one of the ranks of the producer, which ends with it."""
    (rank,) = children_that_run("rank_main", producer.engine_process().pid)
    rank.kill()
    producer.wait_exit()


_VICTIMS = {"rank": end_a_rank, "server": ServerProcess.kill_without_notice}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("architecture", "victim"),
    [("qwen3", "rank"), ("gemma3", "server"), ("deepseek3", "rank"), ("qwen3_next", "server")],
)
def test_servers_of_several_ranks_exchange_pages_until_one_is_killed(
    architecture: Architecture, victim: str, tmp_path: Path
) -> None:
    prompts = [f"{number}: {_PROMPT}" for number in range(5)]
    model = make_tiny_checkpoint(
        tmp_path / "model", architecture, extra={"vocab_size": 512}, **_SIZES
    )
    with role_servers(model, tmp_path, "--tensor-parallel-size", "2") as (producer, consumer):
        wholes = [complete(producer, prompt, cache_salt="whole")[0] for prompt in prompts]
        legs = [complete(producer, each, max_tokens=1, **_LEG)[0] for each in prompts]
        for number, (leg, whole) in enumerate(zip(legs, wholes, strict=True)):
            params = leg["kv_transfer_params"]
            assert params["tp_size"] == 2
            if number == 3:
                _VICTIMS[victim](producer)
            answer, source = complete(consumer, prompts[number], kv_transfer_params=params)
            expected = "transferred;tokens=" if number < 3 else "recomputed;reason="
            assert source.startswith(expected), source
            assert answer["choices"][0]["text"] == whole["choices"][0]["text"]
