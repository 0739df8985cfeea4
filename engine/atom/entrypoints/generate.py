"""`atom generate`: answers to prompts on stdout, as they are generated; no server.

Sampling defaults are the checkpoint's own. Torch-free; the engine runs in its own process.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from atom.config import GenerationDefaults
from atom.entrypoints.flags.engine_args import add_engine_arguments, config_from_args
from atom.errors import EngineDeadError
from atom.sampling_params import SamplingParams

if TYPE_CHECKING:
    from atom.model_engine.llm_engine import LLMEngine
    from atom.model_engine.request import RequestOutput


def add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser)
    add = parser.add_argument_group("prompts and sampling").add_argument
    add("--prompt", nargs="+", required=True, metavar="TEXT", help="one or more prompts")
    add("--chat", action="store_true", help="each prompt is a user message in the chat template")
    add("--system", default=None, metavar="TEXT", help="system message before each chat prompt")
    add("--lora", default=None, metavar="NAME", help="an adapter of --lora-modules that answers")
    add("--max-tokens", type=int, default=128, help="most tokens per answer")
    add("--temperature", type=float, default=None, help="0 is greedy (default: the model's)")
    add("--top-k", type=int, default=None, help="keep the k most likely (default: the model's)")
    add("--top-p", type=float, default=None, help="keep this probability (default: the model's)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text")
    add("--ignore-eos", action="store_true", help="do not end at the model's end tokens")


def run_generate(args: argparse.Namespace) -> int:
    from atom.entrypoints.process.logs import configure_logging
    from atom.model_engine.llm_engine import LLMEngine

    configure_logging(args.log_level)
    if isinstance(sys.stdout, io.TextIOWrapper):  # an answer may have characters outside the locale
        sys.stdout.reconfigure(errors="replace")
    config = config_from_args(args)
    params = sampling_from_args(args, config.model.generation)
    with LLMEngine(config=config) as engine:
        prompts = _prompts(args, engine)
        outputs = engine.stream(prompts, params, add_special_tokens=not args.chat, model=args.lora)
        print_in_order(outputs, len(prompts), sys.stdout)
    return 0


def sampling_from_args(args: argparse.Namespace, defaults: GenerationDefaults) -> SamplingParams:
    def chosen(asked: float | None, default: float | None, otherwise: float) -> float:
        if asked is not None:
            return asked
        return otherwise if default is None else default

    return SamplingParams(
        temperature=chosen(args.temperature, defaults.temperature, 1.0),
        top_k=int(chosen(args.top_k, defaults.top_k, -1)),
        top_p=chosen(args.top_p, defaults.top_p, 1.0),
        min_p=chosen(None, defaults.min_p, 0.0),
        repetition_penalty=chosen(None, defaults.repetition_penalty, 1.0),
        max_tokens=args.max_tokens,
        stop_strings=tuple(args.stop),
        ignore_eos=args.ignore_eos,
    )


def _prompts(args: argparse.Namespace, engine: LLMEngine) -> list[str]:
    if not args.chat:
        return list(args.prompt)
    before = [{"role": "system", "content": args.system}] if args.system else []
    return [
        engine.processor.render_chat([*before, {"role": "user", "content": text}])
        for text in args.prompt
    ]


def print_in_order(outputs: Iterable[tuple[int, RequestOutput]], count: int, out: TextIO) -> None:
    """Print the first unfinished answer as it comes; later ones when it is their turn, each under a
    heading when there are several."""
    from atom.model_engine.request import FinishReason  # not light: a request may have an image

    pending = [[f"--- {index + 1} ---\n"] if count > 1 else [] for index in range(count)]
    ended = [False] * count
    current = 0
    for index, output in outputs:
        if output.finish_reason is FinishReason.ERROR:
            raise EngineDeadError(f"the engine could not answer: {output.finish_detail}")
        pending[index].append(output.text)
        ended[index] = output.finished
        while current < count:
            out.write("".join(pending[current]))
            pending[current].clear()
            if not ended[current]:
                break
            out.write("\n")
            current += 1
        out.flush()
