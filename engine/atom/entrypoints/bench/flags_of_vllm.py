"""The effect here of the flags of `vllm bench serve` that are no flags of `atom bench serve`.

Other names, flags that change nothing, and flags that are refused with a remedy. The tests hold the
list of vLLM's flags, and compare this table and the parser with it.
"""

from __future__ import annotations

from atom.entrypoints.flags.flag_row import ANY_VALUE, FlagRow, FlagVerdict

_TOKENS = "lengths in tokens come from the server, which has the tokenizer"
_LINES = "write its prompts as JSON lines, and use --dataset-name custom with --dataset-path"
_TEXTS = "prompts are text or token ids; use --dataset-name random"
_PLOTS = "add --save-result --save-detailed, and draw the times of each request from that file"


def _row(verdict: FlagVerdict, note: str, flags: str, *values: str) -> FlagRow:
    return FlagRow(tuple(flags.split()), verdict, note, values)


_UNNEEDED, _REFUSED = FlagVerdict.UNNEEDED, FlagVerdict.REFUSED
VLLM_BENCH_FLAGS: tuple[FlagRow, ...] = (
    _row(FlagVerdict.SAME, "--backend", "--endpoint-type"),
    _row(_UNNEEDED, _TOKENS, "--tokenizer --tokenizer-mode", ANY_VALUE),
    _row(_UNNEEDED, _TOKENS, "--skip-tokenizer-init --trust-remote-code"),
    _row(
        _UNNEEDED,
        "prompts are sent as they are; the server applies its template to chats",
        "--skip-chat-template --custom-skip-chat-template",
    ),
    _row(_UNNEEDED, "files are read whole in any case", "--no-stream"),
    _row(_REFUSED, "there is no beam search; the server draws each token", "--use-beam-search"),
    _row(
        _REFUSED,
        "run a second `atom bench serve` with a low --request-rate at the same time",
        "--probe-request-rate",
    ),
    _row(_REFUSED, _PLOTS, "--plot-timeline --timeline-itl-thresholds --plot-dataset-stats"),
    _row(_REFUSED, _LINES, "--hf-subset --hf-split --hf-name --hf-output-len"),
    _row(_REFUSED, _LINES, "--spec-bench-output-len --spec-bench-category"),
    _row(_REFUSED, _LINES, "--blazedit-min-distance --blazedit-max-distance"),
    _row(
        _REFUSED,
        "use --dataset-name prefix_repetition, whose prompts share a beginning too",
        "--sonnet-input-len --sonnet-output-len --sonnet-prefix-len",
    ),
    _row(
        _REFUSED,
        _TEXTS,
        "--random-mm-base-items-per-request --random-mm-num-mm-items-range-ratio "
        "--random-mm-limit-mm-per-prompt --random-mm-bucket-config --enable-multimodal-chat "
        "--asr-max-audio-len-sec --asr-min-audio-len-sec",
    ),
    _row(
        _REFUSED,
        "vectors and scores are not measured; send the requests by a script",
        "--random-batch-size --no-reranker",
    ),
)
VLLM_BENCH_ROW_OF = {flag: row for row in VLLM_BENCH_FLAGS for flag in row.flags}
# Of --dataset-name.
OTHER_DATASETS = {
    **dict.fromkeys(("hf", "spec_bench", "burstgpt", "txt-slices", "speed_bench"), _LINES),
    "sonnet": "use prefix_repetition, whose prompts share a beginning too",
    "random-mm": _TEXTS,
    "random-rerank": "vectors and scores are not measured",
}
