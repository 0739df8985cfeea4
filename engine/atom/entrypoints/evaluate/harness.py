"""The run of `atom evaluate`: lm-evaluation-harness, whose questions a server answers.

The harness makes the prompts and the scores; log-likelihoods are those of prompts that completions
echo, and the tokens those of the server's tokenizer. So the result is comparable with any other
backend of the harness. Needs the extra `evaluation`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import urllib.error
import urllib.request
from typing import Any

from atom.entrypoints.chat.client import ChatClient
from atom.entrypoints.chat.local_server import url_of
from atom.entrypoints.http.api_key import read_api_key
from atom.errors import ConfigError

_FLAG = "--enable-tokenizer-info-endpoint"
_KEY_VARIABLE = "OPENAI_API_KEY"  # which the harness reads


def run(args: argparse.Namespace) -> int:
    """Run the tasks and print their scores. Raises `AtomError`, and `ModuleNotFoundError` without
    the harness."""
    harness = importlib.import_module("lm_eval")
    manager = importlib.import_module("lm_eval.tasks").TaskManager(
        include_path=None if args.include_path is None else str(args.include_path)
    )
    _check_tasks(args.tasks, manager)
    with url_of(args.target, [*args.serve_arg, _FLAG]) as url:
        key = read_api_key(args.api_key_file, os.environ)
        model = ChatClient(url, key).model(args.model)
        _check_tokenizer(url, key)
        if key is not None:
            os.environ[_KEY_VARIABLE] = key
        results = harness.simple_evaluate(
            model=_model_of_harness(url, key)(
                model=model,
                base_url=f"{url}/v1/completions",
                tokenizer_backend="remote",
                num_concurrent=args.max_concurrency,
                auth_token=key,
                seed=args.seed,
            ),
            tasks=args.tasks,
            task_manager=manager,
            limit=args.limit,
            num_fewshot=args.num_fewshot,
            apply_chat_template=args.apply_chat_template,
            random_seed=args.seed,
            fewshot_random_seed=args.seed,
        )
    _report(results, args)
    return 0


def _model_of_harness(url: str, key: str | None) -> Any:
    """Return the harness' class of completions, whose conversations the server renders: with a
    server's tokenizer its own class returns the messages, which its tasks cannot divide."""
    base: Any = importlib.import_module("lm_eval.models.openai_completions").LocalCompletionsAPI

    class Completions(base):  # type: ignore[misc]
        """A model behind /v1/completions."""

        def apply_chat_template(
            self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
        ) -> str:
            """Return the text of a conversation. Raises `ConfigError`."""
            return _rendered(
                (url, key),
                {
                    "model": self.model,
                    "messages": chat_history,
                    "add_generation_prompt": add_generation_prompt,
                    "continue_final_message": not add_generation_prompt,
                },
            )

    return Completions


def _rendered(server: tuple[str, str | None], body: dict[str, Any]) -> str:
    """Let a server, by its URL and key, render a conversation. Raises `ConfigError`."""
    url, key = server
    headers = {"content-type": "application/json"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    asked = urllib.request.Request(
        f"{url}/v1/chat/completions/render", json.dumps(body).encode(), headers
    )
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return str(json.load(answer)["text"])
    except urllib.error.HTTPError as error:
        raise ConfigError(
            f"--apply-chat-template: {error.read().decode(errors='replace')}"
        ) from error
    except OSError as error:
        raise ConfigError(f"{url}: {error}; is the server there?") from error


def _check_tasks(names: list[str], manager: Any) -> None:
    """Raise `ConfigError` for a task that the harness does not know, before a server starts."""
    unknown = [name for name in names if not manager.match_tasks([name])]
    if unknown:
        raise ConfigError(
            f"--tasks: the harness has no {', '.join(unknown)}; `lm-eval ls tasks` lists its own, "
            "and --include-path FOLDER adds yours"
        )


def _check_tokenizer(url: str, key: str | None) -> None:
    """Raise `ConfigError` if the server does not show its tokenizer, which makes the prompts."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        asked = urllib.request.Request(f"{url}/tokenizer_info", headers=headers)
        urllib.request.urlopen(asked, timeout=30).close()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise ConfigError(
                f"{url} does not show its tokenizer; start that server with {_FLAG}"
            ) from None
        raise ConfigError(f"{url}/tokenizer_info: {error}") from error
    except OSError as error:
        raise ConfigError(f"{url}/tokenizer_info: {error}; is the server there?") from error


def _report(results: Any, args: argparse.Namespace) -> None:
    utils = importlib.import_module("lm_eval.utils")
    print(utils.make_table(results))
    if results.get("groups"):
        print(utils.make_table(results, "groups"))
    if args.output_file is None:
        return
    try:
        text = json.dumps(results, indent=2, default=str, ensure_ascii=False)
        args.output_file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output-file {args.output_file}: {error}") from error
