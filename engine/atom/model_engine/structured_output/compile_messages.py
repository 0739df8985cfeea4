"""Messages between the engine core and its compile server, and the bounds that both keep.

The set-up is sent to the server's standard input as one line of JSON; the vocabulary returns on its
standard output. Every connection then begins with a ServerOrder: compile a grammar, which a
CompileReply answers, or follow one, which matcher_messages.py continues.
"""

from __future__ import annotations

import msgspec

from atom.structured_outputs import GrammarSpec


class CompilerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the compile server. tokenizer_folder: of the checkpoint; vocab_size: width of the
    model's logits, which may exceed the tokenizer's vocabulary. The first limits hold for each
    compilation; limit_call_cpu_seconds: for each call that follows a compiled grammar by one token.
    limit_memory_bytes: of each process. masks_fd: of the memory that masks are written to."""

    tokenizer_folder: str
    vocab_size: int
    end_token_ids: list[int]
    limit_cpu_seconds: int = 5
    limit_wall_seconds: float = 30.0
    limit_memory_bytes: int = 1 << 30
    limit_call_cpu_seconds: float = 0.1
    masks_fd: int = -1


class FollowOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Follow sequences by this grammar (the library's, as JSON text). rows: the first of them, each
    the slot of its mask and the tokens that it has already."""

    grammar: str
    rows: list[tuple[int, list[int]]]


class ServerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """State the purpose of a connection: exactly one of the two fields is set."""

    compile: GrammarSpec | None = None
    follow: FollowOrder | None = None


class CompileReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a compilation. grammar: the library's, as JSON text; or why it was refused."""

    grammar: str = ""
    refused: str = ""
