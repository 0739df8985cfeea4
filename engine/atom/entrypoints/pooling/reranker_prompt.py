"""The prompt by which a generating model judges a document: Qwen3-Reranker's, from its model card.

The score is the model's next token, yes or no. The prompt ends after an empty thought, as these
models were trained.
"""

from __future__ import annotations

from atom.pooling_config import RERANKER_INSTRUCTION

_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
_BEHIND = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def reranker_parts(query: str, document: str, instruction: str | None) -> tuple[str, str, str]:
    """Return the prompt in three parts, of which the middle one may be cut at its end."""
    judged = (
        f"<Instruct>: {instruction or RERANKER_INSTRUCTION}\n"
        f"<Query>: {query}\n"
        f"<Document>: {document}"
    )
    return _BEFORE, judged, _BEHIND
