"""The flags of `atom bench serve`, and the values derived from them. Names are those of `vllm bench
serve` if it has one. Torch-free and light to import."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from atom.entrypoints.bench.flags_of_vllm import OTHER_DATASETS
from atom.entrypoints.bench.report_options import METRICS, ReportOptions
from atom.entrypoints.bench.request_flags import (
    CHAT,
    COMPLETIONS,
    add_request_flags,
    key_value,
)
from atom.entrypoints.http.client_url import server_url
from atom.errors import ConfigError
from atom.sizing.options.flag_values import number, share, whole_number

TIMED_TRACE = "timed_trace"
WEKA_TRACE = "weka_trace"
TRACES = (TIMED_TRACE, WEKA_TRACE)
DATASETS = ("random", "prefix_repetition", "sharegpt", "custom", *TRACES)


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    _add_server_flags(parser.add_argument_group("server"))
    _add_workload_flags(parser.add_argument_group("requests"))
    _add_prefix_flags(parser.add_argument_group("dataset prefix_repetition"))
    _add_trace_flags(parser.add_argument_group("datasets timed_trace and weka_trace"))
    _add_load_flags(parser.add_argument_group("load"))
    add_request_flags(parser)
    _add_report_flags(parser.add_argument_group("report"))


def _add_server_flags(group: Any) -> None:
    add = group.add_argument
    add(
        "--base-url",
        type=server_url,
        default=None,
        metavar="URL",
        help="address of the server, with or without /v1 (default: http://HOST:PORT)",
    )
    add("--host", default="127.0.0.1", help="its host, without --base-url")
    add("--port", type=whole, default=8000, help="its port, without --base-url")
    add(
        "--endpoint",
        choices=(COMPLETIONS, CHAT),
        default=None,
        help=f"path of the requests (default: {COMPLETIONS})",
    )
    add("--model", default=None, help="served name (default: the server's first)")
    add(
        "--api-key-file",
        type=Path,
        default=None,
        help="file with the server's key (default: $ATOM_API_KEY or $OPENAI_API_KEY, else none)",
    )


def _add_workload_flags(group: Any) -> None:
    add = group.add_argument
    add(
        "--dataset-name",
        type=_dataset,
        choices=DATASETS,
        default="random",
        help="where prompts come from",
    )
    add(
        "--dataset-path",
        type=Path,
        default=None,
        help="ShareGPT's JSON; JSON lines with a prompt and perhaps output_tokens; or a trace",
    )
    add(
        "--num-prompts",
        type=at_least_one,
        default=None,
        help="requests (default: 64; of a trace all, or its first)",
    )
    add(
        "--input-len", "--random-input-len",
        type=at_least_one, default=128, help="tokens per random prompt",
    )  # fmt: skip
    add(
        "--output-len", "--random-output-len", "--sharegpt-output-len", "--custom-output-len",
        "--prefix-repetition-output-len",
        type=at_least_one,
        default=None,
        help="tokens per answer (default: those of the dataset, else 64)",
    )  # fmt: skip
    add(
        "--random-range-ratio",
        type=_share,
        default=0.0,
        help="lengths differ by up to this share, 0 to 1, both ways",
    )
    add("--random-prefix-len", type=whole, default=0, help="tokens that all prompts begin with")
    add("--vocab-size", type=whole, default=None, help="of random ids (default: ask the server)")
    add(
        "--no-oversample",
        action="store_true",
        help="send fewer requests if the file has fewer prompts (default: repeat them)",
    )
    add(
        "--disable-shuffle",
        action="store_true",
        help="take ShareGPT's conversations in their order; those of other files are in any case",
    )
    add("--seed", type=whole, default=0, help="seed of prompts and arrivals")
    add(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="answers have their full length",
    )
    add(
        "--extra-body",
        type=_fields,
        default={},
        metavar="JSON",
        help="more fields of every request, such as '{\"temperature\": 0}'",
    )


def _add_prefix_flags(group: Any) -> None:
    add = group.add_argument
    add(
        "--prefix-repetition-prefix-len",
        type=at_least_one, default=256, help="tokens of a common prefix",
    )  # fmt: skip
    add(
        "--prefix-repetition-suffix-len",
        type=at_least_one, default=256, help="tokens of each prompt after its prefix",
    )  # fmt: skip
    add(
        "--prefix-repetition-num-prefixes",
        type=at_least_one, default=10, help="different prefixes, each as often as the others",
    )  # fmt: skip


def _add_trace_flags(group: Any) -> None:
    add = group.add_argument
    add(
        "--self-timed",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="send each request at the time of its trace (default: on); off, conversations begin "
        "at --request-rate, and think times stay",
    )
    add(
        "--timed-trace-chunk-hash-size",
        type=at_least_one,
        default=16,
        help="tokens of one of hash_ids in a timed_trace; 512 in Mooncake's",
    )
    add(
        "--timed-trace-sec-multiplier",
        type=_rate,
        default=1.0,
        help="seconds of one unit of a trace's times: 0.001 for Mooncake's milliseconds; less to "
        "replay faster",
    )


def _add_load_flags(group: Any) -> None:
    add = group.add_argument
    add(
        "--request-rate",
        type=_rates,
        default=None,
        metavar="RATE,…",
        help="requests per second (default: all at once); several with commas are a sweep",
    )
    add(
        "--burstiness",
        type=_rate,
        default=1.0,
        help="of arrivals at a rate: 1 Poisson, less in bursts, more evenly",
    )
    add(
        "--max-concurrency",
        type=_limits,
        default=None,
        metavar="N,…",
        help="most requests in flight (default: any number); several with commas are a sweep",
    )
    add(
        "--ramp-up-strategy",
        choices=("linear", "exponential"),
        default=None,
        help="how the rate grows from --ramp-up-start-rps to --ramp-up-end-rps",
    )
    add("--ramp-up-start-rps", type=number, default=None, help="requests per second at the start")
    add("--ramp-up-end-rps", type=number, default=None, help="and at the end")
    add("--num-warmups", type=whole, default=0, help="requests before, not measured")
    add("--timeout-seconds", type=at_least_one, default=600, help="most seconds per request")


def _add_report_flags(group: Any) -> None:
    add = group.add_argument
    add(
        "--percentile-metrics",
        default=",".join(METRICS),
        help="latencies to report, of ttft, tpot, itl and e2el",
    )
    add("--metric-percentiles", default="50,90,99", help="percentiles of each, 0 to 100")
    add(
        "--goodput",
        nargs="+",
        default=None,
        metavar="METRIC:MS",
        help="also count requests within these bounds, such as ttft:200 tpot:30",
    )
    add(
        "--save-result",
        action="store_true",
        help="also write the report to a file, and a sweep's chart as SVG",
    )
    add(
        "--save-detailed",
        action="store_true",
        help="with --save-result: also the lengths, times, texts and errors of every request",
    )
    add("--append-result", action="store_true", help="append the report to the file as a line")
    add(
        "--metadata",
        nargs="*",
        type=key_value,
        default=[],
        metavar="KEY=VALUE",
        help="further entries of the report",
    )
    add("--label", default=None, help="of the report; its file's name begins with it")
    add("--result-dir", default=".", help="folder of that file")
    add("--result-filename", default=None, help="its name (default: from rate, model and time)")
    add("--disable-tqdm", action="store_true", help="no progress while it runs")


def base_url_of(args: argparse.Namespace) -> str:
    host = f"[{args.host}]" if ":" in args.host else args.host
    return str(args.base_url or f"http://{host}:{args.port}")


def _dataset(text: str) -> str:
    if text in OTHER_DATASETS:
        raise argparse.ArgumentTypeError(f"{text!r} is not read here: {OTHER_DATASETS[text]}")
    return text


def report_options(args: argparse.Namespace) -> ReportOptions:
    """Raises `ConfigError` on a metric or percentile that does not exist."""
    metrics = tuple(args.percentile_metrics.split(","))
    _check_metrics("--percentile-metrics", metrics)
    try:
        percentiles = tuple(float(text) for text in args.metric_percentiles.split(","))
    except ValueError:
        percentiles = (-1.0,)
    if not all(0 <= percent <= 100 for percent in percentiles):
        raise ConfigError(
            f"--metric-percentiles {args.metric_percentiles}: must be numbers of 0 to 100 with "
            f"commas between them, such as 50,99.9"
        )
    goodput = None if args.goodput is None else dict(map(_bound, args.goodput))
    _check_metrics("--goodput", tuple(goodput or ()))
    return ReportOptions(metrics=metrics, percentiles=percentiles, goodput=goodput)


def _check_metrics(flag: str, metrics: tuple[str, ...]) -> None:
    for metric in metrics:
        if metric not in METRICS:
            raise ConfigError(f"{flag}: no metric {metric!r}; there are: {', '.join(METRICS)}")


def _bound(text: str) -> tuple[str, float]:
    metric, _, limit = text.partition(":")
    try:
        return metric, float(limit)
    except ValueError as error:
        raise ConfigError(
            f"--goodput {text}: must be METRIC:MILLISECONDS, such as ttft:200"
        ) from error


def whole(text: str) -> int:
    value = whole_number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def at_least_one(text: str) -> int:
    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _rate(text: str) -> float:
    value = number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _rates(text: str) -> tuple[float, ...]:
    return tuple(map(_rate, text.split(",")))


def _limits(text: str) -> tuple[int, ...]:
    return tuple(map(at_least_one, text.split(",")))


def _share(text: str) -> float:
    value = share(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not within 0 and 1")
    return value


def _fields(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value
