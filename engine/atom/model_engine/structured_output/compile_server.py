"""The compile server: `python -m atom.model_engine.structured_output.compile_server SOCKET`.

Grammars come from clients, and a short one may take minutes or all memory, to compile as to follow.
So each is compiled, and followed (matcher_process.py), in processes forked from this one where
library and vocabulary are loaded, with limits that the kernel enforces: whatever they do, they end,
and the engine core never notices. Started by GrammarCompiler; ends when its standard input closes.
Loads no torch.
"""

from __future__ import annotations

import os
import socket
import sys
from functools import partial
from pathlib import Path

import msgspec

from atom.errors import AtomError
from atom.model_engine.structured_output.compile_messages import (
    CompileReply,
    CompilerSetup,
    ServerOrder,
)
from atom.model_engine.structured_output.frames import FrameReader, framed
from atom.model_engine.structured_output.grammar_library import GrammarLibrary
from atom.model_engine.structured_output.matcher_process import follow_grammar
from atom.structured_outputs import GrammarSpec
from atom.structured_outputs.library_grammar import library_grammar
from atom.structured_outputs.regex import character_set
from atom.tokenizer import Tokenizer
from atom.utils.fork_server.process import limit_memory, limit_time, read_setup, refuse, serve

_NICENESS = 15  # above that of a server which yields its cores to an engine


def main() -> int:
    setup = read_setup(CompilerSetup)
    try:
        tokenizer = Tokenizer(Path(setup.tokenizer_folder))
        encode = partial(tokenizer.encode, add_special_tokens=False)
        library = GrammarLibrary(tokenizer.text_bytes(setup.vocab_size), setup, encode)
        character_set.prepare()
    except AtomError as error:
        return refuse(str(error))
    return serve(partial(_answer, library=library, setup=setup))


def _answer(connection: socket.socket, library: GrammarLibrary, setup: CompilerSetup) -> None:
    limit_memory(setup.limit_memory_bytes)
    frames = FrameReader(connection)
    order = msgspec.msgpack.decode(frames.wait() or b"", type=ServerOrder)
    # The server and the engine come first: on a busy machine several of these would else leave
    # them a fraction of a core, and a grammar whose process was lost has one for each sequence.
    os.nice(_NICENESS)
    if order.follow is not None:
        follow_grammar(frames, order.follow, library, setup)
    elif order.compile is not None:
        limit_time(setup.limit_cpu_seconds, setup.limit_wall_seconds)
        reply = _compile(library, order.compile)
        connection.sendall(framed(msgspec.msgpack.encode(reply)))


def _compile(library: GrammarLibrary, spec: GrammarSpec) -> CompileReply:
    try:
        return CompileReply(grammar=library_grammar(spec, library.check, library.to_rules))
    except ValueError as error:
        return CompileReply(refused=str(error))


if __name__ == "__main__":
    sys.exit(main())
