"""The run of `atom chat`: with a server by its URL, or a model that it serves meanwhile.

Needs the standard library alone; a model is served in a child process.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from atom.entrypoints.chat.client import ChatClient
from atom.entrypoints.chat.conversation import Conversation
from atom.entrypoints.chat.local_server import url_of
from atom.entrypoints.chat.terminal import Terminal
from atom.entrypoints.http.api_key import read_api_key
from atom.errors import ConfigError

_HISTORY = Path("~/.local/state/atom/chat_history")


def run(args: argparse.Namespace) -> int:
    """Talk until the end of the input. Raises `AtomError` if there is no server, or no model."""
    terminal = Terminal(sys.stdin, sys.stdout, _HISTORY.expanduser())
    with url_of(args.target, args.serve_arg) as url:
        client = ChatClient(url, read_api_key(args.api_key_file, os.environ))
        model = client.model(args.model)
        asked = {"temperature": args.temperature, "max_tokens": args.max_tokens}
        fields = {name: value for name, value in asked.items() if value is not None}
        conversation = Conversation(client, terminal, {"model": model, **fields}, args.system or "")
        _attach(conversation, args.image)
        terminal.note(f"{model} at {url}. /help lists commands, Ctrl-D ends.")
        conversation.talk()
    return 0


def _attach(conversation: Conversation, files: Sequence[Path]) -> None:
    for file in files:
        try:
            conversation.attach(file)
        except (OSError, ValueError) as error:
            raise ConfigError(f"--image: {error}") from error
