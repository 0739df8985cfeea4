"""Flags that upstream ATOM or vLLM has and this version has not: why, and what to do instead.

So that a launch line from a recipe is refused with the remedy and not only as unknown. Knows
nothing of the flags that there are; asked by the parser for each word that it does not know.
"""

from __future__ import annotations

_NO_BLOCKS = "drafts are made token by token; use --method ngram, mtp or eagle3"
_NO_SYNTHETIC = "only drafts that hold are accepted; leave it out"
_NO_SPLIT = (
    "a copy of the model is divided by --tensor-parallel-size alone; leave it out, and use that, "
    "--data-parallel-size or more replicas"
)
_NO_TRANSFER = "prompts and answers run in one engine here; leave it out"
_NO_LEVELS = (
    "there are no levels of compilation here: decode steps, and those with short prompts, are "
    "graphs unless --enforce-eager"
)

REMEDIES: dict[str, str] = {
    "--trust-remote-code": "a model's own code is never run; leave it out",
    "--enable-chunked-prefill": (
        "prompts are always split where a step is full; --scheduling-policy says what runs first"
    ),
    "--no-enable-chunked-prefill": "the same is --scheduling-policy prefill_first",
    "--level": _NO_LEVELS,
    "--cudagraph-mode": _NO_LEVELS,
    "--cudagraph-capture-sizes": "the sizes follow from --max-num-seqs and the model; leave it out",
    "--attn-prefill-chunk-size": "prompts are split by --max-num-batched-tokens",
    "--dp-load-balance": "this is --data-parallel-routing",
    "--disable-uvicorn-access-log": "this is --disable-access-log",
    "--index-cache-dtype": "no model of this version has an indexer; leave it out",
    "--state-checkpoint-interval-tokens": "no model of this version has states; leave it out",
    "--hf-overrides": "edit the model's config.json instead",
    "--mark-trace": "--torch-profiler-dir and POST /start_profile write traces",
    "--request-log": "what is asked is not logged; the access log has each request's line",
    "--default-chat-template-kwargs": "send chat_template_kwargs, or set them in a --chat-template",
    "--pipeline-parallel-size": _NO_SPLIT,
    "--prefill-context-parallel-size": _NO_SPLIT,
    "--decode-context-parallel-size": _NO_SPLIT,
    "--dcp-config": _NO_SPLIT,
    "--fake-eplb": "experts are placed by what is chosen; use --enable-eplb, or leave it out",
    "--eplb-enable": "this is --enable-eplb",
    "--enable-tbo": "a step is not divided into two that overlap; leave it out",
    "--all2all-backend": "this is --expert-exchange torch or mori",
    "--moe-backend": "this is --op-backend experts=NAME",
    "--spec-decode-acceptance-length": _NO_SYNTHETIC,
    "--spec-decode-acceptance-rate": _NO_SYNTHETIC,
    "--dspark-config": _NO_BLOCKS,
    "--kv-transfer-config": _NO_TRANSFER,
    "--enable-rapidserve": _NO_TRANSFER,
    "--disagg-prefill-max-num-seqs": _NO_TRANSFER,
    "--disagg-constrained": _NO_TRANSFER,
}
_SHORT = {
    "-pp": "--pipeline-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-dcp": "--decode-context-parallel-size",
}


def remedy_of(word: str) -> str | None:
    """What to do instead of a flag, as it was written; None for one that is not known."""
    flag = word.partition("=")[0]
    return REMEDIES.get(_SHORT.get(flag, flag))
