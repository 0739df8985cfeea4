"""`atom evaluate` gives a trained model the scores that lm-evaluation-harness gives it through
transformers."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.agents.session import check_installed
from tests.engine.real_model.conftest import Oracle
from tests.engine.real_model.repository_tasks import COPY, ENDINGS, LAST_WORD, write_tasks
from tests.support.server.server_process import server_process
from tools.pinned_environments import EVALUATION, python_bin

pytestmark = pytest.mark.slow

TASKS = (LAST_WORD, ENDINGS, COPY)
# The harness itself, with the model that transformers computes.
BY_TRANSFORMERS = """
import json, sys, lm_eval
from lm_eval.tasks import TaskManager
model, tasks, output = sys.argv[1:4]
found = lm_eval.simple_evaluate(
    model="hf", model_args={"pretrained": model, "dtype": "float32"}, device="cpu", batch_size=4,
    tasks=sys.argv[4:], task_manager=TaskManager(include_path=tasks),
)
json.dump(found, open(output, "w"), default=str)
"""


def harness(*command: str) -> str:
    """Run a command of this Python, which finds the harness in its pinned environment. Returns what
    it prints."""
    lm_eval = python_bin(EVALUATION) / "lm_eval"
    check_installed(lm_eval)
    (packages,) = (lm_eval.parents[1] / "lib").glob("python3*/site-packages")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False,
        env={**os.environ, **offline, "PYTHONPATH": str(packages)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def scores(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(file.read_text())["results"]
    return found


def test_scores_through_the_server_are_those_of_transformers(
    smollm2_file: Path, oracle: Oracle, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    oracle.model.save_pretrained(tmp_path / "model")
    oracle.tokenizer.save_pretrained(tmp_path / "model")
    flags = ("--max-model-len", "1024", "--num-gpu-blocks-override", "256")
    with server_process(
        smollm2_file, tmp_path / "log", *flags, "--enable-tokenizer-info-endpoint"
    ) as server:
        server.wait_ready()
        printed = harness(
            "-m", "atom.entrypoints.cli", "evaluate", server.url, "--tasks", *TASKS,
            "--include-path", str(tmp_path), "--output-file", str(tmp_path / "ours.json"),
        )  # fmt: skip
    harness(
        "-c", BY_TRANSFORMERS, str(tmp_path / "model"), str(tmp_path),
        str(tmp_path / "theirs.json"), *TASKS,
    )  # fmt: skip
    ours, theirs = scores(tmp_path / "ours.json"), scores(tmp_path / "theirs.json")
    print({task: {k: (v, theirs[task].get(k)) for k, v in ours[task].items()} for task in TASKS})
    for task in TASKS:
        assert task in printed
        compared = [name for name in theirs[task] if name.partition(",")[0] in METRICS]
        assert compared
        for name in compared:
            exact = not name.startswith("perplexity")
            wanted = theirs[task][name]
            assert ours[task][name] == (wanted if exact else pytest.approx(wanted, rel=1e-3))
    # The scores say something: neither nothing is right nor everything.
    assert 1 < theirs[LAST_WORD]["perplexity,none"] < 10**6
    assert 0.25 < theirs[ENDINGS]["acc,none"] < 1
    assert 0.1 < theirs[COPY]["exact_match,none"] <= 1


METRICS = ("perplexity", "acc", "acc_norm", "exact_match")


DEMO = Path(__file__).resolve().parents[3] / "examples" / "models" / "atom-tiny"
KEY = "a-key-of-the-environment"


def evaluated(folder: Path, target: str, *words: str, **environment: str) -> dict[str, Any]:
    """The scores that `atom evaluate` writes of the first documents of each task."""
    file = folder / "scores.json"
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        harness(
            "-m", "atom.entrypoints.cli", "evaluate", target, "--tasks", *TASKS, "--limit", "4",
            "--include-path", str(folder), "--output-file", str(file), *words,
        )  # fmt: skip
    return {task: found for task, found in scores(file).items() if task in TASKS}


def test_a_model_is_served_meanwhile_and_has_the_scores_of_a_server(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    with server_process(DEMO, tmp_path / "log", "--enable-tokenizer-info-endpoint") as server:
        server.wait_ready()
        of_server = evaluated(tmp_path, server.url)
    flags = ("--serve-arg=--device=cpu", "--serve-arg=--served-model-name=demo")
    own = evaluated(tmp_path, str(DEMO), *flags, ATOM_API_KEY=KEY)
    assert own == of_server


@pytest.mark.parametrize("method", ["fp8", "int8"])
def test_a_quantised_model_is_scored_by_its_own_logits(tmp_path: Path, method: str) -> None:
    write_tasks(tmp_path)
    flags = ("--serve-arg=--device=cpu", f"--serve-arg=--quantization={method}")
    found = evaluated(tmp_path, str(DEMO), *flags, "--apply-chat-template")
    assert set(found) == set(TASKS)
    perplexity = found[LAST_WORD]["perplexity,none"]  # the demo model knows no such words
    assert perplexity > 1
    assert math.isfinite(perplexity)


def test_a_gguf_file_is_served_meanwhile(smollm2_file: Path, tmp_path: Path) -> None:
    write_tasks(tmp_path)
    flags = ("--serve-arg=--device=cpu", "--serve-arg=--max-model-len=1024")
    found = evaluated(tmp_path, str(smollm2_file), *flags)
    assert 1 < found[LAST_WORD]["perplexity,none"] < 10**6
