"""`atom batch`: answers a file of requests into a file of answers, without a server.

Both are OpenAI's batch files, one JSON object per line. Torch-free and light to import.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from atom.entrypoints.flags.engine_args import add_engine_arguments, config_from_args
from atom.entrypoints.serve import add_parser_flags, add_template_flags
from atom.sizing.options.flag_values import count_up_to
from atom.sizing.options.images import ImageOptions

_MOST_CONCURRENT = 4096


def add_batch_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser)
    group = parser.add_argument_group("files of requests")
    add = group.add_argument
    add(
        "--input-file", "-i", type=Path, required=True, metavar="FILE",
        help="requests: a line each of custom_id, method, url and body",
    )  # fmt: skip
    add(
        "--output-file", "-o", type=Path, required=True, metavar="FILE",
        help="answers, appended as they come; requests that it answers already are passed over",
    )  # fmt: skip
    add(
        "--max-concurrency", type=count_up_to(_MOST_CONCURRENT), default=256, metavar="N",
        help="most requests that the engine is given at once",
    )  # fmt: skip
    add_template_flags(group)
    add_parser_flags(parser)


def run_batch(args: argparse.Namespace) -> int:
    """Answer the file's unanswered requests; return 1 if some request failed. Raises
    `AtomError`."""
    import asyncio

    from atom.entrypoints.batch.batch_run import BatchFiles, answer_file, print_progress
    from atom.entrypoints.process.logs import configure_logging
    from atom.model_engine.front.input_output_processor import InputOutputProcessor
    from atom.utils.host_memory import host_memory_bytes

    configure_logging(args.log_level)
    files = BatchFiles(args.input_file, args.output_file)
    files.check()
    config = config_from_args(args)
    images = ImageOptions(image_memory_mib=args.image_memory_mib)
    processor = InputOutputProcessor(
        config,
        chat_template_file=args.chat_template,
        tool_call_parser=args.tool_call_parser,
        reasoning_parser=args.reasoning_parser,
        template_kwargs=args.default_chat_template_kwargs,
        image_memory_bytes=images.memory_bytes(host_memory_bytes()),
    )
    with print_progress(files) as told:
        names = tuple(args.served_model_name or ())
        counts = asyncio.run(
            answer_file(
                config,
                processor,
                files,
                names=names,
                most_at_once=args.max_concurrency,
                told=told,
            )
        )
    return 1 if counts.failed else 0
