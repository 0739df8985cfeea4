"""The effect here of every flag of `vllm serve`, SGLang's launch_server and upstream ATOM.

Three kinds of rows: aliases of our own flags, flags that are accepted and change nothing, and flags
that are refused with a remedy (`refused_flags`). The tests hold the lists of those servers' flags,
and compare this table with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from atom.entrypoints.flags.flag_row import FlagRow, FlagVerdict
from atom.entrypoints.flags.refused_flags import REFUSED_FLAGS
from atom.entrypoints.flags.refused_kinds import REFUSED_KINDS


def _same(flag: str, names: str) -> FlagRow:
    return FlagRow(tuple(names.split()), FlagVerdict.SAME, flag)


def _unneeded(why: str, flags: str, *values: str) -> FlagRow:
    return FlagRow(tuple(flags.split()), FlagVerdict.UNNEEDED, why, values)


_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")
_SAME: tuple[FlagRow, ...] = (
    _same("--model", "--model-path"),
    _same("--tensor-parallel-size", "--tp-size --tp"),
    _same("--data-parallel-size", "--dp-size --dp"),
    _same("--max-model-len", "--context-length --context-len --ctx-size"),
    _same(
        "--gpu-memory-utilization",
        "--mem-fraction-static --mem-fraction --device-memory-utilization",
    ),
    _same("--max-num-seqs", "--max-running-requests"),
    _same("--max-waiting-requests", "--max-queued-requests --max-num-queued-reqs"),
    _same("--max-num-batched-tokens", "--chunked-prefill-size"),
    _same("--block-size", "--page-size"),
    _same("--seed", "--random-seed"),
    _same("--num-kv-blocks", "--num-gpu-blocks-override"),
    _same("--kv-offloading-size", "--hicache-size"),
    _same("--enforce-eager", "--disable-cuda-graph"),
    _same("--reproducible", "--enable-deterministic-inference"),
    _same("--no-enable-prefix-caching", "--disable-radix-cache"),
    _same("--disable-access-log", "--disable-uvicorn-access-log"),
    _same("--enable-eplb", "--eplb-enable"),
    _same("--enable-expert-parallel", "-ep"),
    _same("--root-path", "--fastapi-root-path"),
    _same("--tokenizer", "--tokenizer-path"),
    _same("--quantization", "-q"),
    _same("--nnodes", "-n"),
    _same("--node-rank", "-r"),
    _same("--speculative-config", "-sc"),
    _same("--api-server-count", "-asc"),
    _same("--method", "--spec-method"),
    _same(
        "--draft-model",
        "--spec-model --speculative-model --speculative-draft-model --speculative-draft-model-path",
    ),
    _same("--num-speculative-tokens", "--spec-tokens --speculative-num-draft-tokens"),
)
_UNNEEDED: tuple[FlagRow, ...] = (
    _unneeded(
        "prompts are split where a step is full; --scheduling-policy says what runs first",
        "--enable-chunked-prefill --enable-mixed-chunk",
    ),
    _unneeded(
        "a step is prepared while the one before runs, in any case",
        "--async-scheduling --use-v2-block-manager",
    ),
    _unneeded(
        "a model's own code is never run, and none is needed",
        "--trust-remote-code --no-trust-remote-code",
    ),
    _unneeded("what is asked and answered is never logged", "--disable-log-requests"),
    _unneeded("figures are told by /metrics alone", "--disable-log-stats --enable-metrics"),
    _unneeded("GET /load tells it in any case", "--enable-server-load-tracking"),
    _unneeded("every answer has X-Request-Id", "--enable-request-id-headers"),
    _unneeded(
        "usage tells cached tokens in any case",
        "--enable-prompt-tokens-details --enable-cache-report",
    ),
    _unneeded("/docs asks no other server for scripts", "--enable-offline-docs"),
    _unneeded(
        "tools are left out of the prompt then in any case", "--exclude-tools-when-tool-choice-none"
    ),
    _unneeded("requests come by their priority in any case", "--enable-priority-scheduling"),
    _unneeded("a request that runs gives way to none", "--disable-priority-preemption"),
    _unneeded("--reasoning-parser is enough", "--enable-reasoning"),
    _unneeded("events hold what is new in any case", "--incremental-streaming-output"),
    _unneeded("bars are shown on a terminal alone", "--use-tqdm-on-load"),
    _unneeded("HTTP processes share the port in any case", "--enable-http-worker-reuseport"),
    _unneeded("ranks find out how they reach each other", "--enable-p2p-check"),
    _unneeded("an idle engine sleeps in any case", "--sleep-on-idle"),
    _unneeded("the server warms up before it is ready", "--skip-server-warmup"),
    _unneeded(
        "there is nothing of the kind to turn off",
        "--disable-cascade-attn --disable-hybrid-kv-cache-manager --disable-hybrid-swa-memory "
        "--disable-outlines-disk-cache --disable-fast-image-processor "
        "--disable-tokenizer-batch-decode --disable-frontend-multiprocessing "
        "--disable-custom-all-reduce --disable-flashinfer-autotune --disable-mm-preprocessor-cache",
    ),
    _unneeded(
        "--kv-offloading-size turns the tier in the host's memory on",
        "--enable-hierarchical-cache --enable-hicache",
    ),
    _unneeded("text alone is read and written", "--enable-multimodal"),
    _unneeded(
        "it is found out in any case",
        "--config-format --tokenizer-mode --model-impl --distributed-executor-backend "
        "--sampling-backend --attention-backend",
        "auto",
    ),
    _unneeded(
        "llguidance follows grammars, in the notations of all",
        "--guided-decoding-backend --grammar-backend",
        "auto",
        "guidance",
        "llguidance",
        "xgrammar",
    ),
    _unneeded(
        "contents go to templates as text", "--chat-template-content-format", "auto", "string"
    ),
    _unneeded("up to 20 alternatives of a token are told", "--max-logprobs", "20"),
    _unneeded("--log-level says it for all", "--uvicorn-log-level --log-level-http", *_LEVELS),
    _unneeded("all are allowed", "--allowed-methods --allowed-headers", '["*"]', "*"),
    _unneeded("answers have this role in any case", "--response-role", "assistant"),
)

OTHER_FLAGS: tuple[FlagRow, ...] = (*_SAME, *_UNNEEDED, *REFUSED_FLAGS, *REFUSED_KINDS)
ROW_OF: Mapping[str, FlagRow] = MappingProxyType(
    {flag: row for row in OTHER_FLAGS for flag in row.flags}
)
