from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atom.config import EngineOptions, GenerationDefaults, build_config
from atom.entrypoints.cli import build_parser, main
from atom.entrypoints.flags.engine_args import add_engine_arguments, options_from_args
from atom.entrypoints.flags.flag_parser import FlagParser
from atom.entrypoints.generate import print_in_order, sampling_from_args
from atom.entrypoints.process.logs import flush_logs
from atom.entrypoints.serve_options import server_options
from atom.entrypoints.server_parts import LimitOptions, ListenOptions
from atom.errors import ConfigError, EngineDeadError
from atom.model_engine.request import FinishReason, RequestOutput
from tests.support.engine_core.front_half import write_model_folder
from tests.support.engine_core.option_values import values_of
from tests.support.server.server_process import command_environment
from tests.support.waiting import HANG_SECONDS


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands configure the logging of their process, which is the test runner's here."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    flush_logs()
    root.handlers = handlers
    root.setLevel(level)


def options(*words: str) -> EngineOptions:
    parser = FlagParser()
    add_engine_arguments(parser)
    return options_from_args(parser.parse_args(["--model", "m", *words]))


def test_the_flags_defaults_are_the_options_defaults() -> None:
    assert options() == EngineOptions.of(model="m")


def test_every_option_has_a_flag(tmp_path: Path) -> None:
    weights = tmp_path / "weights.json"
    weights.write_text('{"header:team-a": 4}')
    given = options(
        "--tokenizer", "t", "--generation-config", "vllm",
        "--override-generation-config", '{"top_k": 5}',
        "--revision", "r", "--served-model-name", "s", "--dtype", "float32", "--device", "cpu",
        "--backend", "torch_ref", "--op-backend", "attention=torch_ref", "--op-backend", "a=b",
        "--load-dummy", "--seed", "1", "--max-model-len", "2", "--max-num-seqs", "3",
        "--max-num-batched-tokens", "4", "--long-prefill-token-threshold", "5",
        "--scheduling-policy", "prefill_first", "--scheduler-delay-factor", "0.5",
        "--block-size", "32", "--num-kv-blocks", "7", "--gpu-memory-utilization", "0.8",
        "--kv-cache-dtype", "fp32", "--no-enable-prefix-caching", "-tp", "2", "-dp", "3",
        "--enforce-eager", "--max-waiting-requests", "6",
        "--data-parallel-routing", "round_robin", "--stall-seconds", "9",
        "--torch-profiler-dir", "traces", "--quantization", "fp8",
        "--online-quant-config", '{"global_quant_config": "fp8"}', "--method", "ngram",
        "--enable-expert-parallel", "--enable-dp-attention", "--enable-eplb",
        "--expert-exchange", "mori", "--nnodes", "2", "--node-rank", "1",
        "--master-addr", "10.0.0.1", "--master-port", "29501", "--fairness", "off",
        "--fairness-weights", str(weights), "--runner", "pooling",
        "--convert", "embed", "--kv-events-config", '{"enable_kv_cache_events": true}',
        "--max-step-seconds", "0.5",
        "--enable-lora", "--enable-sleep-mode", "--sleep-queue", "--sleep-idle-seconds", "60",
        "--reproducible", "--kv-offloading-size", "2", "--kv-offload-min-tokens", "7",
        "--kv-offload-policy", "protected", "--kv-offload-write", "through",
        "--kv-disk-dir", "/tiers", "--kv-disk-size", "3",
        "--kv-transfer-config", '{"kv_role": "kv_producer"}', "--deadline-ms", "900",
        "--deadline-action", "queue",
        "--language-model-only", "--limit-mm-per-prompt", '{"image": 3}',
        "--image-memory-mib", "64", "--self-check", "on",
    )  # fmt: skip
    unchanged = [
        name
        for name, value in vars(values_of(EngineOptions.of(model="m"))).items()
        if getattr(values_of(given), name) == value
    ]
    assert unchanged == ["model", "kv_offloading_backend"]  # of which there is one
    assert given.execution.op_backends == {"attention": "torch_ref", "a": "b"}


def test_snake_case_is_the_same_as_kebab_case() -> None:
    snake = options("--max_model_len", "9", "--kv_cache_dtype=bf16", "--no_enable_prefix_caching")
    assert snake == options(
        "--max-model-len", "9", "--kv-cache-dtype=bf16", "--no-enable-prefix-caching"
    )
    assert options("--served-model-name=a_b").checkpoint.served_model_name == "a_b"


def test_server_flags() -> None:
    words = ["serve", "--model", "m", "--server-port", "0", "--host", "::1", "--drain-seconds", "7"]
    args = build_parser().parse_args([*words, "--chat-template", "t", "--disable-access-log"])
    server = server_options(args)
    assert (server.listen.host, server.listen.port, server.drain_seconds) == ("::1", 0, 7.0)
    assert (server.chat.chat_template, server.listen.access_log) == (Path("t"), False)
    assert server.limits.request_timeout_seconds is None
    args = build_parser().parse_args([*words, "--request-timeout-seconds", "1.5"])
    assert server_options(args).limits.request_timeout_seconds == 1.5
    assert server.limits.body_memory_bytes == LimitOptions().body_memory_bytes
    args = build_parser().parse_args([*words, "--body-memory-mib", "9"])
    assert server_options(args).limits.body_memory_bytes == 9 * 2**20
    assert server.listen.allowed_origins == ()
    assert server.listen.keep_alive_seconds == ListenOptions().keep_alive_seconds
    args = build_parser().parse_args([*words, "--allowed-origins", "*", "http://a:3000"])
    assert server_options(args).listen.allowed_origins == ("*", "http://a:3000")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["serve"],
        ["serve", "--model"],
        ["fly"],
        ["serve", "--model", "m", "--max-num"],
        ["serve", "--model", "m", "--server-port", "70000"],
        ["serve", "--model", "m", "--drain-seconds", "-1"],
        ["serve", "--model", "m", "--body-memory-mib", "7"],
        ["serve", "--model", "m", "--allowed-origins", "https://a/"],
        ["serve", "--model", "m", "--allowed-origins", "a.example.com"],
        ["serve", "--model", "m", "--kv-cache-dtype", "int2"],
        ["serve", "--model", "m", "--seed", "x"],
        ["bench"],
        ["generate", "--model", "m"],
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert "--help" in message


# All flags of upstream's engine and server.
TAKEN = [
    "--served-model-name=s", "--tensor-parallel-size=1", "-tp=1", "--data-parallel-size=1", "-dp=1",
    "--enforce-eager", "--enable_prefix_caching", "--no-enable_prefix_caching",
    "--kv_cache_dtype=bf16", "--block-size=16", "--max-model-len=64", "--load_dummy",
    "--torch-profiler-dir=d", "--max-num-batched-tokens=512", "--long-prefill-token-threshold=1",
    "--max-num-seqs=1", "--gpu-memory-utilization=0.5", "--scheduler-delay-factor=1", "--host=h",
    "--quantization=fp8", "--load_format=dummy", "--method=ngram", "--num-speculative-tokens=1",
    '--speculative-config={"method": "ngram"}',
    "--enable-expert-parallel", "--enable-dp-attention", "--enable-eplb", "--eplb-config={}",
    "--trust-remote-code", "--enable_chunked_prefill", "--eplb-enable",
    "--disable-uvicorn-access-log", "--default-chat-template-kwargs={}",
    "--server-port=1", "--port=8006", "--timeout-keep-alive=1", "--chat-template=t",
]  # fmt: skip
REFUSED = [
    "--pipeline-parallel-size=1", "-pp=1", "-pcp=1", "-dcp=1",
    "--prefill-context-parallel-size=1", "--decode-context-parallel-size=1",
    "--index_cache_dtype=fp8", "--cudagraph-capture-sizes=[1,2]", "--level=3",
    "--cudagraph-mode=FULL", "--fake-eplb",
    "--dp-load-balance=round_robin", "--enable-tbo=all", "--all2all-backend=low-latency",
    "--moe-backend=mega",
    "--spec-decode-acceptance-length=1", "--spec-decode-acceptance-rate=1",
    "--attn-prefill-chunk-size=16", "--state-checkpoint-interval-tokens=16",
    "--no-enable_chunked_prefill", "--disaggregation-mode=prefill",
    "--mark-trace", "--enable-rapidserve", "--disagg-prefill-max-num-seqs=1",
    "--disagg-constrained", "--hf-overrides={}", "--dspark-config={}",
    "--dcp-config={}", "--request-log=l",
]  # fmt: skip


def parse_flag(flag: str) -> None:
    name, _, value = flag.partition("=")
    build_parser().parse_args(["serve", "--model", "m", name, *([value] if value else [])])


@pytest.mark.parametrize("flag", TAKEN)
def test_upstreams_flags_are_taken(flag: str) -> None:
    parse_flag(flag)


@pytest.mark.parametrize("flag", REFUSED)
def test_upstreams_flags_that_are_not_here_are_refused_with_a_remedy(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_flag(flag)
    assert ended.value.code == 2
    assert f"\n  {flag.partition('=')[0].replace('_', '-')}: " in capsys.readouterr().err


def test_a_flag_that_nobody_knows_is_just_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "--model", "m", "--frobnicate"])
    assert capsys.readouterr().err.count("--frobnicate") == 1


@pytest.mark.parametrize(
    ("words", "port"),
    [
        ([], 8000),
        (["--port", "9"], 9),
        (["--server-port", "9"], 9),
        (["--port", "9", "--server-port", "9"], 9),
        (["--port", "0"], 0),
    ],
)
def test_the_http_port_has_the_name_that_every_server_gives_it(words: list[str], port: int) -> None:
    args = build_parser().parse_args(["serve", "--model", "m", *words])
    assert server_options(args).listen.port == port


def test_a_line_that_gives_the_engine_a_port_of_its_own_is_refused() -> None:
    """As upstream's lines may: one of the two would be without effect."""
    words = ["serve", "--model", "m", "--port", "8006", "--server-port", "8000"]
    with pytest.raises(ConfigError, match=r"--port 8006 and --server-port 8000 .* give one"):
        server_options(build_parser().parse_args(words))


def test_an_unknown_kv_cache_is_refused_with_what_to_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert options("--kv_cache_dtype", "fp8").cache.kv_cache_dtype == "fp8"
    remedy = "use auto, the model's own type, or one of bf16, fp16, fp32, fp8"
    with pytest.raises(SystemExit) as ended:
        options("--kv_cache_dtype", "int4")
    assert ended.value.code == 2
    assert remedy in capsys.readouterr().err
    with pytest.raises(ConfigError, match=remedy):
        build_config(EngineOptions.of(model="m", kv_cache_dtype="int4"))


def test_a_malformed_backend_override_is_refused() -> None:
    with pytest.raises(ConfigError, match="OP=NAME"):
        options("--op-backend", "attention")


def test_a_users_error_is_one_line_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["generate", "--prompt", "x"], ["bench", "throughput"], ["bench", "latency"]):
        code = main([*command, "--model", str(tmp_path / "nothing")])
        message = capsys.readouterr().err
        assert code == 1
        assert message.startswith("error: ")
        assert "no such folder" in message
        assert message.count("\n") == 1


def test_debug_shows_the_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "--model", str(tmp_path), "--prompt", "x", "--log-level", "debug"]
    assert main(words) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_benchmark_of_no_server_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:9"]) == 1
    assert "check --base-url" in capsys.readouterr().err


def test_the_command_line_and_the_server_need_no_torch(tmp_path: Path) -> None:
    """Also a whole offline start-up up to the engine process stays free of it."""
    write_model_folder(tmp_path)
    script = f"""
import sys
import atom.entrypoints.cli, atom.entrypoints.openai_server
heavy = ("torch", "transformers", "fastapi", "zmq", "tokenizers", "aiohttp")
assert not [name for name in heavy if name in sys.modules], sorted(sys.modules)
import atom.entrypoints.server.run_server
import atom.model_engine.llm_engine, atom.model_engine.async_llm_engine
from atom.config import EngineOptions, build_config
from atom.model_engine.front.input_output_processor import InputOutputProcessor
InputOutputProcessor(build_config(EngineOptions.of(model={str(tmp_path)!r})))
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=command_environment(),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_sampling_defaults_of_generate_are_the_models() -> None:
    words = ["generate", "--model", "m", "--prompt", "x"]
    defaults = GenerationDefaults(temperature=0.6, top_k=20)
    params = sampling_from_args(build_parser().parse_args(words), defaults)
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 20, 1.0)
    args = build_parser().parse_args([*words, "--temperature", "0", "--top-k", "0", "--stop", "a"])
    params = sampling_from_args(args, defaults)
    assert (params.temperature, params.top_k, params.stop_strings) == (0.0, 0, ("a",))


def output(text: str, *, reason: FinishReason | None = None) -> RequestOutput:
    return RequestOutput("x", [1], text, reason is not None, reason, "", 1, 1, 0)


def test_several_answers_are_printed_in_order_under_headings() -> None:
    out = io.StringIO()
    steps = [
        (1, output("b1")),
        (0, output("a1")),
        (1, output("b2", reason=FinishReason.STOP)),
        (2, output("c1")),
        (0, output("a2", reason=FinishReason.LENGTH)),
        (2, output("c2", reason=FinishReason.STOP)),
    ]
    print_in_order(iter(steps), 3, out)
    assert out.getvalue() == "--- 1 ---\na1a2\n--- 2 ---\nb1b2\n--- 3 ---\nc1c2\n"


def test_one_answer_is_printed_alone_and_a_failed_one_is_an_error() -> None:
    out = io.StringIO()
    print_in_order(iter([(0, output("a", reason=FinishReason.STOP))]), 1, out)
    assert out.getvalue() == "a\n"
    with pytest.raises(EngineDeadError, match="could not answer"):
        print_in_order(iter([(0, output("", reason=FinishReason.ERROR))]), 1, out)


def test_the_folder_of_downloads_is_where_the_hub_keeps_models(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "before")
    words = ["generate", "--model", str(tmp_path / "none"), "--prompt", "a"]
    assert main([*words, "--download-dir", str(tmp_path)]) == 1
    assert os.environ["HF_HUB_CACHE"] == str(tmp_path)
