"""What the engine core and its compile server say to each other, and the bounds they agree on.

The set-up goes over the server's standard input as one line of JSON, the vocabulary comes back over
its standard output; then every compilation is one connection: a GrammarSpec in, a CompileReply out.
"""

from __future__ import annotations

import msgspec


class CompilerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """tokenizer_folder: of the checkpoint; vocab_size: width of the model's logits, which may
    exceed the tokenizer's vocabulary. The limits hold for each compilation."""

    tokenizer_folder: str
    vocab_size: int
    end_token_ids: list[int]
    limit_cpu_seconds: int = 5
    limit_wall_seconds: float = 30.0
    limit_memory_bytes: int = 1 << 30
    limit_result_bytes: int = 32 << 20


class CompilerReady(msgspec.Struct, frozen=True, kw_only=True):
    """The server's first and only words on its standard output. vocabulary: bytes of each token,
    empty for those that stand for no text. error: why there will be no server; empty if there is
    one."""

    vocabulary: list[bytes] = []
    error: str = ""


class CompileReply(msgspec.Struct, frozen=True, kw_only=True):
    """grammar: xgrammar's serialised form; or why it was refused."""

    grammar: str = ""
    refused: str = ""
