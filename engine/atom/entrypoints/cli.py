"""`atom`: serve, chat, generate, batch, evaluate, bench, advise, replay, preflight, completion.
Parses, dispatches, and makes errors one line each.

Torch-free and quick to import: what a command needs is imported when it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

import atom
from atom.entrypoints.advise import add_advise_arguments, run_advise
from atom.entrypoints.batch import add_batch_arguments, run_batch
from atom.entrypoints.bench import add_bench_commands
from atom.entrypoints.chat import add_chat_arguments, run_chat
from atom.entrypoints.evaluate import add_evaluate_arguments, run_evaluate
from atom.entrypoints.flags.flag_parser import FlagParser
from atom.entrypoints.generate import add_generate_arguments, run_generate
from atom.entrypoints.process.logs import print_error
from atom.entrypoints.process.process_conduct import open_standard_streams
from atom.entrypoints.replay import add_replay_arguments, run_replay
from atom.entrypoints.serve import add_serve_arguments, run_serve
from atom.entrypoints.server_args import add_log_level
from atom.errors import AtomError
from atom.missing_packages import missing_package
from atom.preflight import add_preflight_arguments, run_preflight
from atom.utils.exhausted import exhausted

COMPLETING = "_ARGCOMPLETE"  # argcomplete's variable
SHELLS = ("bash", "zsh", "fish")
_DESCRIPTION = (
    "LLM inference on AMD Instinct and NVIDIA GPUs, and on CPUs: an OpenAI-compatible server, "
    "answers offline, and benchmarks."
)
_INTERRUPTED = 130  # as shells expect after Ctrl-C
_PIPE_CLOSED = 141  # and after SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 an error (one line on stderr), 2 wrong
    usage, 130 interrupted, 141 the reader of the output has gone."""
    open_standard_streams()
    parser = build_parser()
    if COMPLETING in os.environ:  # a shell asks for the next word
        _complete(parser)
    args = parser.parse_args(argv)
    if getattr(args, "download_dir", None):
        # Before the hub's library is loaded, which reads it once; our processes inherit it.
        os.environ["HF_HUB_CACHE"] = args.download_dir
    try:
        return int(args.run(args))
    except AtomError as error:
        if args.log_level == "debug":
            traceback.print_exc()
        print_error(error)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the exit
        return _PIPE_CLOSED
    except ModuleNotFoundError as error:
        lacking = missing_package(error, "this command")
        if lacking is None or args.log_level == "debug":
            raise
        print_error(lacking)
        return 1
    except Exception as error:
        known = exhausted(error)
        if known is None or args.log_level == "debug":
            raise
        print_error(known)
        return 1


def build_parser() -> argparse.ArgumentParser:
    parser = FlagParser(prog="atom", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"atom {atom.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve a model over an OpenAI-compatible HTTP API")
    add_serve_arguments(serve)
    add_log_level(serve, "info")
    serve.set_defaults(run=run_serve)

    chat = commands.add_parser("chat", help="talk to a model or a server in the terminal")
    add_chat_arguments(chat)
    add_log_level(chat, "warning")
    chat.set_defaults(run=run_chat)

    generate = commands.add_parser("generate", help="answer prompts offline, on stdout")
    add_generate_arguments(generate)
    add_log_level(generate, "warning")
    generate.set_defaults(run=run_generate)

    batch = commands.add_parser("batch", help="answer a file of requests, without a server")
    add_batch_arguments(batch)
    add_log_level(batch, "warning")
    batch.set_defaults(run=run_batch)

    evaluate = commands.add_parser("evaluate", help="score a model by lm-evaluation-harness")
    add_evaluate_arguments(evaluate)
    add_log_level(evaluate, "warning")
    evaluate.set_defaults(run=run_evaluate)

    bench = commands.add_parser("bench", help="measure throughput, latency, or a server")
    for command in add_bench_commands(bench):
        add_log_level(command, "warning")

    advice = commands.add_parser("advise", help="say what to buy for a load, and how to run it")
    add_advise_arguments(advice)
    advice.set_defaults(run=run_advise, log_level="warning")

    replay = commands.add_parser("replay", help="ask a recorded request again, and compare")
    add_replay_arguments(replay)
    replay.set_defaults(run=run_replay, log_level="warning")

    preflight = commands.add_parser("preflight", help="say what of this machine can be used")
    add_preflight_arguments(preflight)
    preflight.set_defaults(run=run_preflight, log_level="warning")

    completion = commands.add_parser("completion", help="print what completes `atom` in a shell")
    completion.add_argument("shell", choices=SHELLS, help="bash: source <(atom completion bash)")
    completion.set_defaults(run=print_completion, log_level="warning")
    return parser


def _complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell, and end. A shell shows no error, so without the package there is no
    answer."""
    try:
        from argcomplete import autocomplete
    except ModuleNotFoundError:
        sys.exit(1)
    autocomplete(parser)


def print_completion(args: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["atom"], shell=args.shell))
    return 0


if __name__ == "__main__":
    sys.exit(main())
