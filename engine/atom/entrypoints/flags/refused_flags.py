"""Flags of vLLM, SGLang and upstream ATOM that this server does not take, each with its remedy.

Data alone. What a remedy claims of this version is held by tests where a machine can see it: the
flags that it names exist, and no model of the registry contradicts it.
"""

from __future__ import annotations

from atom.entrypoints.flags.flag_row import FlagRow, FlagVerdict


def refused(remedy: str, flags: str) -> FlagRow:
    return FlagRow(tuple(flags.split()), FlagVerdict.REFUSED, remedy)


REFUSED_FLAGS: tuple[FlagRow, ...] = (
    refused(
        "use --speculative-config, or --method ngram, suffix, mtp, eagle3 or draft_model (which "
        "SGLang calls STANDALONE)",
        "--speculative-algorithm --ngram-prompt-lookup-max --ngram-prompt-lookup-min "
        "--speculative-num-steps --speculative-eagle-topk",
    ),
    refused(
        "sequences share the KV cache's blocks as they come; --num-kv-blocks or "
        "--gpu-memory-utilization sets its size",
        "--max-total-tokens --kv-cache-memory-bytes --enable-cumem-allocator",
    ),
    refused(
        "--master-addr and --master-port say where the first machine is",
        "--dist-init-addr --nccl-init-addr --nccl-port",
    ),
    refused(
        "experts are divided with --enable-expert-parallel, over all ranks of a copy",
        "--ep --ep-size --expert-parallel-size --moe-dp-size --moe-data-parallel-size "
        "--moe-dense-tp-size --max-ep-size",
    ),
    refused(
        "this is --data-parallel-routing",
        "--dp-load-balance --load-balance-method",
    ),
    refused(
        "this is --expert-exchange torch or mori",
        "--all2all-backend --moe-a2a-backend --flashinfer-a2a-dispatch-type",
    ),
    refused(
        "this is --op-backend experts=NAME",
        "--moe-backend --moe-runner-backend",
    ),
    refused(
        "experts are placed by what is chosen; use --enable-eplb with --eplb-config, or leave it "
        "out",
        "--fake-eplb --init-expert-location --eplb-algorithm --eplb-rebalance-num-iterations "
        "--eplb-rebalance-layers-per-chunk --eplb-min-rebalancing-utilization-threshold "
        "--ep-num-redundant-experts --expert-placement-strategy",
    ),
    refused(
        "only drafts that hold are accepted; leave it out",
        "--spec-decode-acceptance-length --spec-decode-acceptance-rate "
        "--speculative-accept-threshold-single --speculative-accept-threshold-acc "
        "--speculative-use-rejection-sampling --speculative-use-block-verification",
    ),
    refused(
        "drafts are made token by token; use --method ngram, suffix, mtp, eagle3 or draft_model",
        "--dspark-config --speculative-dspark-block-size --speculative-dflash-block-size",
    ),
    refused(
        "prompts are split by --max-num-batched-tokens",
        "--attn-prefill-chunk-size --max-prefill-tokens --max-num-scheduled-tokens "
        "--enable-dynamic-chunking",
    ),
    refused(
        "this is --scheduling-policy prefill_first, with --scheduler-delay-factor to wait",
        "--enable-prefill-delayer --prefill-delayer-max-delay-passes "
        "--prefill-delayer-max-delay-ms --prefill-schedule-interval --prefill-decode-interval",
    ),
    refused(
        "requests come by their priority, then by their arrival; --scheduling-policy says how "
        "prompts and answers share a step",
        "--schedule-policy --schedule-low-priority-values-first --default-priority-value "
        "--abort-on-priority-when-disabled --priority-scheduling-preemption-threshold",
    ),
    refused(
        "the indexer's keys are stored as --kv-cache-dtype says",
        "--index-cache-dtype --qsa-indexer-dtype --enable-deepseek-v4-fp4-indexer",
    ),
    refused(
        "edit the model's config.json instead",
        "--hf-overrides --json-model-override-args --rope-scaling --rope-theta "
        "--model-class-overrides --hf-config-path --model-config-parser --is-embedding "
        "--pooler-config",
    ),
    refused(
        "--torch-profiler-dir and POST /start_profile write traces",
        "--mark-trace --profiler-config --enable-layerwise-nvtx-tracing "
        "--enable-layerwise-nvtx-marker --enable-profile-cuda-graph --collect-detailed-traces",
    ),
    refused(
        "what is asked and answered is not logged; the access log has each request's line",
        "--request-log --enable-log-requests --log-requests --log-requests-level "
        "--log-requests-format --log-requests-target --enable-log-outputs --enable-log-deltas "
        "--max-log-len --export-metrics-to-file --export-metrics-to-file-dir --crash-dump-folder",
    ),
    refused(
        "set HF_TOKEN in the environment: arguments are seen by everybody on the machine",
        "--hf-token",
    ),
    refused("use --runner and --convert", "--task"),
    refused(
        "a request cannot bring a template; start the server with --chat-template FILE",
        "--trust-request-chat-template",
    ),
    refused(
        "name a Jinja file with --chat-template",
        "--hf-chat-template-name --completion-template",
    ),
    refused(
        "send the field return_tokens_as_token_ids with the request",
        "--return-tokens-as-token-ids",
    ),
    refused(
        "send stream_options with include_usage in the request",
        "--enable-force-include-usage --stream-response-default-include-usage",
    ),
    refused(
        "send structured_outputs with disable_any_whitespace in the request",
        "--guided-decoding-disable-any-whitespace --constrained-json-disable-any-whitespace "
        "--constrained-json-whitespace-pattern --constrained-json-max-whitespace-cnt",
    ),
    refused(
        "there is one compiler of grammars, with its defaults; leave it out",
        "--structured-outputs-config",
    ),
    refused(
        "set the model's defaults with --override-generation-config",
        "--preferred-sampling-params --sampling-defaults",
    ),
    refused(
        "the parsers are those of --tool-call-parser and --reasoning-parser",
        "--tool-parser-plugin --reasoning-parser-plugin --tool-strict-level --reasoning-config "
        "--reasoning-effort-map",
    ),
    refused(
        "tools are called by the client; leave it out",
        "--tool-server",
    ),
    refused(
        "the server listens on --host and --port; put a proxy in front for a socket file, HTTP/2 "
        "or gRPC",
        "--uds --grpc --grpc-port --grpc-mode --smg-grpc-mode --grpc-http-sidecar-port "
        "--smg-http-sidecar-port --grpc-response-timeout-secs --enable-http2 "
        "--http2-initial-connection-window-size --http2-max-concurrent-streams "
        "--gated-launch-port --sidecar --sidecar-args",
    ),
    refused(
        "browsers' cookies are not used; --allowed-origins is what there is of CORS",
        "--allow-credentials",
    ),
    refused(
        "keep /docs from clients by the proxy in front",
        "--disable-fastapi-docs",
    ),
    refused(
        "the log says one line per request and engine event; --log-level says from which on, and "
        "--disable-access-log leaves out those of requests",
        "--log-config-file --logging-config --disable-access-log-for-endpoints "
        "--uvicorn-access-log-exclude-prefixes --decode-log-interval "
        "--enable-logging-iteration-details --enable-request-time-stats-logging --log-error-stack "
        "--aggregate-engine-logging --show-time-cost",
    ),
    refused(
        "--otlp-traces-endpoint sends a span of every request; the variable OTEL_SERVICE_NAME "
        "names the service",
        "--otlp-service-name --enable-trace --trace-modules",
    ),
    refused(
        "GET /metrics has what there is to see",
        "--enable-mfu-metrics --cudagraph-metrics --kv-cache-metrics --kv-cache-metrics-sample "
        "--enable-forward-pass-metrics --forward-pass-metrics-ipc-name "
        "--forward-pass-metrics-worker-id --enable-per-request-metrics "
        "--per-request-spec-decode-metrics "
        "--show-hidden-metrics-for-version --custom-histogram-buckets "
        "--enable-metrics-for-all-schedulers --extra-metric-labels "
        "--tokenizer-metrics-custom-labels-header --tokenizer-metrics-allowed-custom-labels "
        "--bucket-time-to-first-token --bucket-inter-token-latency --bucket-e2e-request-latency "
        "--prompt-tokens-buckets --generation-tokens-buckets --context-bucket "
        "--expert-balancedness-report-mode",
    ),
    refused(
        "--stall-seconds says when /live fails, and --startup-budget-seconds how long a start may "
        "take",
        "--watchdog-timeout --soft-watchdog-timeout --watchdog-config --enable-fault-tolerance "
        "--fault-tolerance-config",
    ),
    refused(
        "--max-waiting-requests bounds what waits",
        "--max-num-queued-tokens --max-num-active-seqs",
    ),
    refused(
        "--enable-sleep-mode is all there is to say; the rest follows from it",
        "--sleep-mode-backend --sleep-mode-offload-cudagraph "
        "--sleep-preserve-parameter-names --enable-memory-saver",
    ),
    refused(
        "all layers run on the one device of --device; there is no share of them on a CPU",
        "--n-gpu-layers",
    ),
    refused(
        "decode steps are graphs for the sizes that follow from --max-num-seqs and the model, "
        "unless --enforce-eager",
        "--cudagraph-capture-sizes --cuda-graph-bs --cuda-graph-max-bs --cuda-graph-bs-decode "
        "--cuda-graph-max-bs-decode --max-cudagraph-capture-size --max-seq-len-to-capture "
        "--max-context-len-to-capture --torch-compile-max-bs --cuda-graph-bs-prefill "
        "--cuda-graph-max-bs-prefill --cuda-graph-max-seq-len-prefill "
        "--cuda-graph-prefill-max-context",
    ),
    refused(
        "answers go on where the context ends them, with finish_reason length; send "
        "truncate_prompt_tokens in the request",
        "--allow-auto-truncate",
    ),
    refused(
        "a step has at most the tokens of --max-num-batched-tokens, of which "
        "--long-prefill-token-threshold go to one prompt",
        "--long-prefill-token-threshold-adaptive --max-num-partial-prefills "
        "--max-long-partial-prefills --prefill-max-requests",
    ),
    refused(
        "--quantization and --online-quant-config say how a plain checkpoint is stored; a "
        "quantised one says it itself",
        "--quantization-config --quantization-param-path --quantize-and-serve --modelopt-quant "
        "--allow-deprecated-quantization --rl-quant-profile",
    ),
    refused(
        "the port answers TLS by --ssl-keyfile and --ssl-certfile; start again with new files",
        "--enable-ssl-refresh",
    ),
    refused(
        "--api-server-count starts more processes that tokenise and answer",
        "--tokenizer-worker-num --detokenizer-worker-num --renderer-num-workers "
        "--dynamic-batch-tokenizer-batch-size --dynamic-batch-tokenizer-batch-timeout "
        "--enable-dynamic-batch-tokenizer --enable-tokenizer-batch-encode",
    ),
    refused(
        "a model has one revision; give it with --revision",
        "--tokenizer-revision --speculative-draft-model-revision",
    ),
    refused(
        "logits of the model as it computes them are what log-probabilities are taken from",
        "--logprobs-mode --use-fp64-gumbel --enable-fp32-lm-head",
    ),
)
