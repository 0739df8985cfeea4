"""The compile server: `python -m atom.model_engine.structured_output.compile_server SOCKET`.

Grammars come from clients, and a short one may take minutes or all memory, to compile as to follow.
So each is compiled, and followed (matcher_process.py), in processes forked from this one where
library and vocabulary are loaded, with limits that the kernel enforces: whatever they do, they end,
and the engine core never notices. Started by GrammarCompiler; ends when its standard input closes.
Loads no torch.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import msgspec

from atom.errors import AtomError
from atom.model_engine.structured_output.compile_messages import (
    CompileReply,
    CompilerReady,
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

_BACKLOG = 64
_NICENESS = 15  # above that of a server which yields its cores to an engine


def main() -> int:
    setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=CompilerSetup)
    try:
        tokenizer = Tokenizer(Path(setup.tokenizer_folder))
        encode = partial(tokenizer.encode, add_special_tokens=False)
        library = GrammarLibrary(tokenizer.text_bytes(setup.vocab_size), setup, encode)
        character_set.prepare()
    except AtomError as error:
        _say(CompilerReady(error=str(error)))
        return 1
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(_BACKLOG)
        _say(CompilerReady())
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them
        _serve(listener, library, setup)
    return 0


def _say(ready: CompilerReady) -> None:
    with os.fdopen(os.dup(1), "wb") as out:
        out.write(msgspec.msgpack.encode(ready))
    # Closes the pipe: its reader sees the end. Nothing else may be written there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _serve(listener: socket.socket, library: GrammarLibrary, setup: CompilerSetup) -> None:
    """Fork a child for each connection, until standard input ends."""
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                listener.close()  # else clients of a server that has died wait for this child
                _answer_and_exit(connection, library, setup)


def _answer_and_exit(
    connection: socket.socket, library: GrammarLibrary, setup: CompilerSetup
) -> None:
    """Run the child: never returns. Dying without an answer is an answer too."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the library's warnings quote the client
        _limit_memory(setup)
        frames = FrameReader(connection)
        order = msgspec.msgpack.decode(frames.wait() or b"", type=ServerOrder)
        # The server and the engine come first: on a busy machine several of these would else leave
        # them a fraction of a core, and a grammar whose process was lost has one for each sequence.
        os.nice(_NICENESS)
        if order.follow is not None:
            follow_grammar(frames, order.follow, library, setup)
        elif order.compile is not None:
            _limit_time(setup)
            reply = _compile(library, order.compile)
            connection.sendall(framed(msgspec.msgpack.encode(reply)))
    finally:
        os._exit(0)


def _limit_memory(setup: CompilerSetup) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + setup.limit_memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _limit_time(setup: CompilerSetup) -> None:
    cpu = setup.limit_cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, setup.limit_wall_seconds)


def _compile(library: GrammarLibrary, spec: GrammarSpec) -> CompileReply:
    try:
        return CompileReply(grammar=library_grammar(spec, library.check, library.to_rules))
    except ValueError as error:
        return CompileReply(refused=str(error))


if __name__ == "__main__":
    sys.exit(main())
