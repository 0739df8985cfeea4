"""Kinds of other servers' flags that have no counterpart here, each kind with one remedy.

Data alone, as `refused_flags`, which has the most common flags, with a remedy for each.
"""

from __future__ import annotations

from atom.entrypoints.flags.flag_row import FlagRow
from atom.entrypoints.flags.refused_flags import refused

REFUSED_KINDS: tuple[FlagRow, ...] = (
    refused(
        "adapters are chosen by --lora-modules, --max-loras and --max-lora-rank; the rest follows "
        "from the model",
        "--default-mm-loras --enable-lora-overlap-loading "
        "--enable-mixed-moe-lora-format --enable-moe-shared-loras --enable-tower-connector-lora "
        "--experts-shared-outer-loras --fully-sharded-loras --lora-backend "
        "--lora-drain-wait-threshold --lora-dtype --lora-eviction-policy "
        "--lora-paths --lora-strict-loading --lora-target-modules --lora-use-virtual-experts "
        "--max-loaded-loras --max-lora-chunk-size --max-lora-cls-labels "
        "--max-loras-per-batch --specialize-active-lora --uno-lora-path",
    ),
    refused(
        "text alone is read and written, also of models that read images",
        "--asr-max-buffer-seconds "
        "--asr-max-concurrent-sessions --code-revision --disable-chunked-mm-input "
        "--enable-adaptive-dispatch-to-encoder --enable-broadcast-mm-inputs-process "
        "--enable-encoder-swa-bounded-replay --enable-mm-embeds --enable-mm-global-cache "
        "--enable-prefix-mm-cache --encoder-bootstrap-port --encoder-only --encoder-register-urls "
        "--encoder-transfer-backend --encoder-urls --image-processor-backend "
        "--interleave-mm-strings --language-only --limit-mm-data-per-request "
        "--media-io-kwargs --media-url-max-file-size-mb "
        "--mm-attention-backend --mm-device-do-normalize --mm-enable-dp-encoder "
        "--mm-encoder-attn-backend --mm-encoder-attn-dtype --mm-encoder-fp8-scale-path "
        "--mm-encoder-fp8-scale-save-margin --mm-encoder-fp8-scale-save-path --mm-encoder-only "
        "--mm-encoder-tp-mode --mm-feature-transport --mm-global-cache-backend "
        "--mm-hasher-algorithm --mm-io-worker-num --mm-ipc-gpu-memory-gb "
        "--mm-preprocess-cache-size-mb --mm-process-config --mm-processor-cache-gb "
        "--mm-processor-cache-type --mm-processor-device --mm-processor-kwargs "
        "--mm-processor-worker-num --mm-shm-cache-max-object-size-mb --mm-tensor-ipc "
        "--skip-mm-profiling --trust-mm-content-hashes --trust-request-mm-kwargs "
        "--video-pruning-method --video-pruning-rate",
    ),
    refused(
        "states of layers are kept in float32, with checkpoints for the prefix cache at intervals "
        "that follow from the memory: there is nothing to choose",
        "--enable-int8-mamba-checkpoint --enable-linear-replayssm --enable-linear-replayssm-spec "
        "--enable-mamba-cache-stochastic-rounding --enable-mamba-shared-prefix-checkpoint "
        "--enable-scattered-sconv --gdn-prefill-backend --int8-mamba-ckpt-size "
        "--kda-decode-backend --kda-prefill-backend --linear-attn-backend "
        "--linear-attn-decode-backend --linear-attn-prefill-backend --linear-attn-verify-backend "
        "--linear-backend --linear-replayssm-cache-len --mamba-backend --mamba-block-size "
        "--mamba-cache-dtype --mamba-cache-mode --mamba-cache-philox-rounds "
        "--mamba-full-memory-ratio --mamba-max-states-per-path --mamba-radix-cache-strategy "
        "--mamba-ssm-cache-dtype --mamba-ssm-dtype --mamba-ssu-algorithm --mamba-track-interval "
        "--max-mamba-cache-size --replayssm-buffer-len --state-checkpoint-interval-tokens "
        "--use-replayssm",
    ),
    refused(
        "--kv-transfer-config with kv_role kv_producer or kv_consumer is the role of an engine",
        "--disaggregation-mode --disaggregation-transfer-backend",
    ),
    refused(
        "--kv-transfer-config divides prompts and answers over engines, with all of its options",
        "--decoupled-spec-bind-endpoint --decoupled-spec-connect-endpoints --decoupled-spec-rank "
        "--decoupled-spec-role --disagg-constrained --disagg-prefill-max-num-seqs "
        "--disaggregation-bootstrap-port --disaggregation-decode-allocation-policy "
        "--disaggregation-decode-enable-offload-kvcache "
        "--disaggregation-decode-enable-radix-cache --disaggregation-decode-extra-slots "
        "--disaggregation-decode-host-receive-threshold --disaggregation-decode-polling-interval "
        "--disaggregation-decode-retraction-backup --disaggregation-enable-kv-checksum "
        "--disaggregation-ib-device "
        "--ec-manager-config --ec-transfer-config --enable-pd-role-switch --enable-pdmux "
        "--enable-rapidserve --enable-scale-out --engine-info-bootstrap-port "
        "--mooncake-ib-device --num-reserved-decode-tokens --pdmux-config-path --tokens-only",
    ),
    refused(
        "--kv-offloading-size GIB keeps KV blocks in the host's memory; --kv-offload-policy, "
        "--kv-offload-write and --kv-offload-min-tokens say how",
        "--enable-flexkv --enable-lmcache --flexkv-config-file --hicache-host-memory-fraction "
        "--hicache-host-memory-mode --hicache-io-backend --hicache-mem-layout --hicache-ratio "
        "--hicache-storage-backend --hicache-storage-backend-extra-config "
        "--hicache-storage-prefetch-policy --hicache-storage-prefetch-retry-max-attempts "
        "--hicache-storage-prefetch-retry-poll-interval --hicache-write-policy "
        "--lmcache-config-file --swap-space",
    ),
    refused(
        "the KV cache and the weights lie in the device's memory; --gpu-memory-utilization says "
        "how much of it",
        "--cpu-offload-gb --cpu-offload-params --enable-draft-weights-cpu-backup "
        "--enable-elastic-expert-backup --enable-hisparse --enable-linker-mla-dedup "
        "--enable-paged-experts --enable-unified-cache-external-linker --enable-unified-memory "
        "--enable-weights-cpu-backup --engram-config "
        "--hierarchical-sparse-attention-extra-config --hisparse-config --kt-cpuinfer "
        "--kt-max-deferred-experts-per-token --kt-method --kt-num-gpu-experts "
        "--kt-threadpool-count --kt-weight-path --offload-backend --offload-group-size "
        "--offload-mode --offload-num-in-group --offload-params --offload-prefetch-step "
        "--paged-experts-num-resident --ple-offload-backend --ple-offload-dir "
        "--ple-offload-embedding --unified-cache-external-linker-backend "
        "--unified-cache-external-linker-config --weight-cache-mode --weight-cache-socket "
        "--weight-cache-timeout",
    ),
    refused(
        "speculation is set by --method, --num-speculative-tokens, --draft-model and "
        "--speculative-config alone",
        "--decrypted-draft-config-file --diffusion-config --dllm-algorithm "
        "--dllm-algorithm-config --dllm-fdfo --dwdp-size --enable-multi-layer-eagle "
        "--num-lookahead-slots --spec-trace-dir --speculative-adaptive "
        "--speculative-adaptive-config --speculative-attention-mode "
        "--speculative-disable-by-batch-size --speculative-domino-candidate-pool-size "
        "--speculative-draft-attention-backend --speculative-draft-kv-cache-dtype "
        "--speculative-draft-load-format --speculative-draft-model-quantization "
        "--speculative-draft-sink-size --speculative-draft-window-size "
        "--speculative-dsa-topk-backend --speculative-dspark-align-verify-tokens-to-graph-tier "
        "--speculative-dspark-confidence-sts-path --speculative-dspark-sps-table-path "
        "--speculative-enable-w4a4-mxfp4-megamoe --speculative-max-model-len "
        "--speculative-moe-a2a-backend --speculative-moe-runner-backend "
        "--speculative-ngram-capacity --speculative-ngram-external-corpus-max-tokens "
        "--speculative-ngram-external-corpus-path --speculative-ngram-external-sam-budget "
        "--speculative-ngram-match-type --speculative-ngram-max-bfs-breadth "
        "--speculative-ngram-max-trie-depth --speculative-ngram-min-bfs-breadth "
        "--speculative-token-map -dc",
    ),
    refused(
        "experts are divided and moved by --enable-expert-parallel, --enable-dp-attention and "
        "--enable-eplb alone",
        "--deepep-config --deepep-dispatcher-output-dtype --deepep-mode --deepep-v2-mode "
        "--disable-flashinfer-cutlass-moe-fp4-allgather --disable-shared-experts-fusion "
        "--elastic-ep-backend --elastic-ep-initial-size --elastic-ep-join-mode "
        "--elastic-ep-join-rank-offset --elastic-ep-max-dp-size --elastic-ep-scale-timeout "
        "--enable-elastic-ep --enable-fused-moe-sum-all-reduce --enable-megamoe-for-layernorm-sp "
        "--enable-nvidia-megakernel --enable-shared-experts-attn-tp --enable-w4a4-mxfp4-megamoe "
        "--enable-waterfill --enforce-shared-experts-fusion --ep-dispatch-algorithm "
        "--expert-distribution-recorder-buffer-size --expert-distribution-recorder-mode "
        "--flashinfer-mxfp4-moe-precision --fuseep-mode --shared-experts-tp-size",
    ),
    refused(
        "a copy of the model is divided by --tensor-parallel-size alone; use that, "
        "--data-parallel-size or more replicas",
        "--attention-context-parallel-size --attention-data-parallel-size --attn-cp-size "
        "--attn-dp-size --base-gpu-id --cp-kv-cache-interleave-size --cp-strategy "
        "--data-parallel-address --data-parallel-backend --data-parallel-external-lb "
        "--data-parallel-hybrid-lb --data-parallel-multi-port-external-lb --data-parallel-rank "
        "--data-parallel-rpc-port --data-parallel-size-local --data-parallel-start-rank "
        "--data-parallel-supervisor-port --dbo-decode-token-threshold "
        "--dbo-prefill-token-threshold --dcp-comm-backend --dcp-config "
        "--dcp-kv-cache-interleave-size --dcp-q-replicate --dcp-replicate-q-proj --dcp-size "
        "--decode-context-parallel-size --device-ids --disable-attn-tp-gather "
        "--disable-nccl-for-dp-synchronization --dp-supervisor-probe-failure-threshold "
        "--dp-supervisor-probe-interval-s --dp-supervisor-probe-timeout-s --dp-sync-interval "
        "--enable-attn-tp-input-scattered --enable-cp-decode-attn-tp --enable-dbo "
        "--enable-dense-mlp-attn-tp --enable-dp-attention-local-control-broadcast "
        "--enable-dp-lm-head --enable-hc-sp --enable-kv-cache-sharding --enable-layernorm-sp "
        "--enable-prefill-cp --enable-single-batch-overlap --enable-tbo "
        "--enable-tp-lm-head-all-to-all --enable-two-batch-overlap --gpu-id-step --headless "
        "--kv-sharing-fast-prefill --numa-bind --numa-bind-cpus --numa-bind-nodes --numa-node "
        "--pipeline-parallel-size --pp --pp-async-batch-depth --pp-max-micro-batch-size --pp-size "
        "--prefill-context-parallel-size --tbo-token-distribution-threshold --ubatch-size -dcp "
        "-dpa -dpb -dpe -dph -dpl -dpm -dpn -dpp -dpr -pcp -pp",
    ),
    refused(
        "ranks find and reach each other by themselves; machines by --master-addr and "
        "--master-port",
        "--boundary-reduction --cpu-distributed-timeout-seconds --dist-timeout "
        "--distributed-timeout-seconds --enable-mscclpp --enable-nccl-comm-suspend "
        "--enable-nccl-nvls --enable-quant-communications --enable-shm-tensor-arena "
        "--enable-symm-mem --enable-torch-symm-mem --pre-warm-nccl --ray-workers-use-nsight "
        "--use-ray --worker-use-ray",
    ),
    refused(
        "there are no levels of compilation here: decode steps, and those with short prompts, are "
        "graphs unless --enforce-eager",
        "--compilation-config --cuda-graph-backend-decode --cuda-graph-backend-prefill "
        "--cuda-graph-config --cudagraph-mode --debug-cuda-graph --disable-cuda-graph-padding "
        "--disable-decode-cuda-graph --disable-prefill-cuda-graph --enable-amd-monokernel "
        "--enable-cudagraph-gc --enable-flashinfer-autotune --enable-torch-compile "
        "--enable-torch-compile-debug-mode --flashinfer-autotune-skip-ops --ir-op-priority "
        "--jit-monitor-mode --jit-monitor-verbose --level --monokernel --monokernel-backend "
        "--optimization-level --performance-mode -O -cc",
    ),
    refused(
        "which kernels run is chosen by operation; --backend and --op-backend OP=NAME change it",
        "--attention-config --bf16-gemm-backend --decode-attention-backend "
        "--disable-aiter-allreduce-fusion-in-decode --disable-aiter-allreduce-fusion-in-prefill "
        "--dsa-decode-backend --dsa-paged-mqa-logits-backend --dsa-prefill-backend "
        "--dsa-topk-backend --dsa-triton-union --dsv4-attn-backend --dsv4-prefill-backend "
        "--enable-aiter-allreduce-fusion --enable-dsa-cache-layer-split "
        "--enable-dsa-fused-indexer --enable-flash-late-interaction "
        "--enable-flashinfer-allreduce-fusion --enable-fused-qk-norm-rope --enable-lean-attention "
        "--enable-tf32-matmul --enforce-disable-flashinfer-allreduce-fusion "
        "--flashinfer-allreduce-fusion-backend --flashinfer-mla-disable-ragged --fp4-gemm-backend "
        "--fp8-gemm-backend --kernel-config --mlx-enable-sampling --prefill-attention-backend "
        "--sm-group-num --sparse-indexer-topk-backend --triton-attention-num-kv-splits "
        "--triton-attention-reduce-in-fp32 --triton-attention-split-tile-size -ac",
    ),
    refused(
        "the KV cache is set by --block-size, --num-kv-blocks, --kv-cache-dtype and "
        "--enable-prefix-caching alone",
        "--c128-page-size --disable-chunked-prefix-cache --disable-sliding-window "
        "--enable-decoder-swa-bounded-replay --enable-page-major-kv-layout "
        "--enable-session-radix-cache --kv-cache-dtype-skip-layers --kv-canary "
        "--kv-canary-real-data --kv-canary-sweep-interval --prefill-kv-cache-dequant-dtype "
        "--prefill-only-disable-kv-cache --prefix-cache-retention-interval "
        "--prefix-caching-hash-algo --prefix-match-unit --radix-cache-backend "
        "--radix-eviction-policy --radix-eviction-policy-config --retraction-policy "
        "--strip-thinking-cache --swa-bounded-replay --swa-full-tokens-ratio --swa-prefix-tails",
    ),
    refused(
        "steps are set by --scheduling-policy, --max-num-seqs and --max-num-batched-tokens alone",
        "--disable-overlap-schedule --enable-mis --enable-streaming-session "
        "--min-free-slots-delay --num-continuous-decode-steps --num-scheduler-steps "
        "--optimistic-prefill-attempts --preemption-mode "
        "--prefill-decode-interval-min-bs --prefill-delayer-forward-passes-buckets "
        "--prefill-delayer-queue-min-ratio --prefill-delayer-token-usage-low-watermark "
        "--prefill-delayer-wait-seconds-buckets --schedule-conservativeness "
        "--scheduler-recv-interval --scheduler-reserve-full-isl --stream-interval",
    ),
    refused(
        "a checkpoint is a folder of safetensors with its config.json, or a hub id, and is read "
        "as it is",
        "--additional-config --checkpoint-engine-wait-weights-before-ready "
        "--decrypted-config-file --delete-ckpt-after-loading --enable-ep-weight-filter "
        "--enable-precise-embedding-interpolation --ignore-patterns "
        "--max-parallel-loading-workers --model-checksum --model-loader-extra-config "
        "--modelexpress-config --modelopt-checkpoint-restore-path --modelopt-checkpoint-save-path "
        "--modelopt-export-path --pt-load-map-location --remote-instance-weight-loader-backend "
        "--remote-instance-weight-loader-seed-instance-ip "
        "--remote-instance-weight-loader-seed-instance-service-port "
        "--remote-instance-weight-loader-send-weights-group-ports "
        "--remote-instance-weight-loader-start-seed-via-transfer-engine --rl-on-policy-target "
        "--safetensors-load-strategy --safetensors-prefetch-block-size "
        "--safetensors-prefetch-num-threads --skip-tokenizer-init --startup-weight-load-mode "
        "--tokenizer-backend --weight-loader-disable-mmap --weight-loader-drop-cache-after-load "
        "--weight-loader-prefetch-checkpoints --weight-loader-prefetch-num-threads "
        "--weight-transfer-config --weight-version",
    ),
    refused(
        "there is nothing of the kind here",
        "--batch-notify-size --debug-tensor-dump-input-file --debug-tensor-dump-layers "
        "--debug-tensor-dump-output-folder --enable-trace-replay --fail-on-environ-validation "
        "--fingerprint-mode --fingerprint-value --gc-threshold --gc-warning-threshold-secs "
        "--load-publish-endpoint --load-snapshot-publish-interval --msprobe-dump-config",
    ),
    refused(
        "what an answer holds is asked for by fields of the request",
        "--anthropic-disabled-thinking-effort --aux-output-config --cohere-format "
        "--cohere-is-reasoning-model --enable-batch-sharded-sampling --enable-prompt-embeds "
        "--enable-response-store --enable-return-aux-hidden-states --enable-return-hidden-states "
        "--enable-return-indexer-topk --enable-return-routed-experts --enable-strict-thinking "
        "--enable-watermark --return-aux-hidden-state-layer-ids --return-hidden-states-mode "
        "--return-input-ids --return-output-ids --return-sampling-mask --sampling-mask-max-tokens "
        "--sse-keep-alive-interval --watermark --watermark-config",
    ),
    refused(
        "the server's own flags (--help=server) are all there are of HTTP",
        "--file-storage-path --h11-max-header-count --h11-max-incomplete-event-size --warmups",
    ),
    refused(
        "no code of other programs is loaded into this one; put a proxy in front, or change the "
        "source",
        "--custom-weight-loader --enable-custom-logit-processor --forward-hooks "
        "--io-processor-plugin --logits-processors --middleware --scheduler-cls --worker-cls "
        "--worker-extension-cls",
    ),
)
