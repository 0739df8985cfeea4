"""The compile server: `python -m atom.model_engine.structured_output.compile_server SOCKET`.

Grammars come from clients, and a short one may take minutes or all memory, to compile as to follow.
So each is compiled, and followed (matcher_process.py), in processes forked from this one where
library and vocabulary are loaded, with limits that the kernel enforces: whatever they do, they end,
and the engine core never notices. Started by GrammarCompiler; ends when its standard input closes.
Loads no torch.
"""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from atom.errors import AtomError
from atom.model_engine.structured_output.compile_messages import (
    CompileReply,
    CompilerReady,
    CompilerSetup,
    ServerOrder,
)
from atom.model_engine.structured_output.frames import FrameReader, framed
from atom.model_engine.structured_output.matcher_process import follow_grammar
from atom.model_engine.structured_output.token_info import build_token_info
from atom.model_engine.structured_output.xgrammar_import import import_xgrammar
from atom.structured_outputs import GrammarSpec
from atom.structured_outputs.json_schema import schema_to_grammar
from atom.structured_outputs.regex import character_set, regex_to_grammar
from atom.structured_outputs.structural_tag import tag_with_grammars
from atom.tokenizer import Tokenizer

_BACKLOG = 64
_NICENESS = 15  # above that of a server which yields its cores to an engine
_LOG_PREFIX = re.compile(r"^\[[\d:]+\] \S+?:\d+: ")


def main() -> int:
    setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=CompilerSetup)
    try:
        xgrammar = import_xgrammar()
        tokenizer = Tokenizer(Path(setup.tokenizer_folder))
        vocabulary = tokenizer.text_bytes(setup.vocab_size)
        info = build_token_info(xgrammar, vocabulary, setup)
        character_set.prepare()
    except AtomError as error:
        _say(CompilerReady(error=str(error)))
        return 1
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(_BACKLOG)
        _say(CompilerReady())
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them
        _serve(listener, xgrammar, info, setup)
    return 0


def _say(ready: CompilerReady) -> None:
    with os.fdopen(os.dup(1), "wb") as out:
        out.write(msgspec.msgpack.encode(ready))
    # Closes the pipe: its reader sees the end. Nothing else may be written there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _serve(listener: socket.socket, xgrammar: Any, info: Any, setup: CompilerSetup) -> None:
    """Fork a child for each connection, until standard input ends."""
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                listener.close()  # else clients of a server that has died wait for this child
                _answer_and_exit(connection, xgrammar, info, setup)


def _answer_and_exit(
    connection: socket.socket, xgrammar: Any, info: Any, setup: CompilerSetup
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
            follow_grammar(frames, order.follow, xgrammar, info, setup)
        elif order.compile is not None:
            _limit_time(setup)
            reply = _compile(xgrammar, info, order.compile, setup)
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


def _compile(xgrammar: Any, info: Any, spec: GrammarSpec, setup: CompilerSetup) -> CompileReply:
    # One thread: the limit on processor time is then one on time.
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    try:
        grammar: str = _compile_kind(compiler, spec).serialize_json()
    except Exception as error:  # RuntimeError and its kin, with the library's reason
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            raise  # no answer: the client reports the limits
        return CompileReply(refused=_LOG_PREFIX.sub("", str(error)).strip())
    if len(grammar) > setup.limit_result_bytes:
        return CompileReply(
            refused=f"compiled it takes {len(grammar) >> 20} MiB; at most "
            f"{setup.limit_result_bytes >> 20} MiB are served"
        )
    return CompileReply(grammar=grammar)


def _compile_kind(compiler: Any, spec: GrammarSpec) -> Any:
    if spec.kind == "structural_tag":
        return compiler.compile_structural_tag(tag_with_grammars(spec.text))
    if spec.kind == "json":
        return compiler.compile_grammar(schema_to_grammar(spec.text, one_line=spec.compact))
    if spec.kind == "regex":
        return compiler.compile_grammar(regex_to_grammar(spec.text))
    return compiler.compile_grammar(spec.text)


if __name__ == "__main__":
    sys.exit(main())
