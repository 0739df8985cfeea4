"""FlagParser: the parser of the engine's commands.

Snake case is kebab case; errors are those of HintingParser. A parser that `takes_model` reads `atom
serve MODEL`, --config FILE, and the flags of other servers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from atom.entrypoints.flags.config_file import with_config_file, words_of_flag
from atom.entrypoints.flags.flag_help import Help, page_of, short_page
from atom.entrypoints.flags.flag_row import FlagRow
from atom.entrypoints.flags.flag_words import FlagNote, kebab, read_words
from atom.entrypoints.flags.other_flags import ROW_OF
from atom.errors import ConfigError
from atom.sizing.options.hinting_parser import HintingParser


class FlagParser(HintingParser):
    """Parse flags; --help shows a short page with examples. takes_model: whether a command opens a
    model, by a positional word or by --model. other_flags: of another program, with their effect
    here, of a command that opens none. examples, most_used: of the short page that --help
    shows; empty shows all."""

    takes_model = False
    other_flags: Mapping[str, FlagRow] = MappingProxyType({})
    examples: Sequence[str] = ()
    most_used: Sequence[str] = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("formatter_class", Help)
        super().__init__(*args, **options)
        self._refused: tuple[FlagNote, ...] = ()

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = [kebab(word) for word in (sys.argv[1:] if args is None else args)]
        if not self.takes_model:
            return self._parse_plain(words, namespace)
        self.line = words
        self._show_page_asked_for(words)
        try:
            words = with_config_file(_with_model_flag(words), self._option_string_actions)
        except ConfigError as error:
            self.error(str(error))
        read = read_words(words)
        self._refused = read.refused
        self.line = _with_model_flag(read.words)
        # Past HintingParser, which knows no word without a flag.
        found, rest = argparse.ArgumentParser.parse_known_args(self, self.line, namespace)
        if found.model is None and rest and not rest[0].startswith("-"):
            found.model = rest.pop(0)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        if self._refused:
            self.error("not every flag of this line is taken here")
        if found.model is None and getattr(found, "models", None) is None:
            self.error(f"which model? {self.prog} MODEL: a folder, a GGUF file, or a hub id")
        found.unneeded_flags = read.unneeded
        found.line, found.parser = words, self
        return found, rest

    def _parse_plain(
        self, words: Sequence[str], namespace: argparse.Namespace | None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse a line of a command that opens no model."""
        if not self.other_flags:
            return super().parse_known_args(words, namespace)
        read = read_words(words, self.other_flags)
        self._refused = read.refused
        found, rest = super().parse_known_args(read.words, namespace)
        if self._refused:
            self.error("not every flag of this line is taken here")
        found.unneeded_flags = read.unneeded
        return found, rest

    def parse_further(self, line: Sequence[str], further: Mapping[str, Any]) -> argparse.Namespace:
        """Parse a line with flags behind it, which win, as a YAML file has them. An error of them
        ends the program, as one of the line does."""
        known = self._option_string_actions
        words = (
            word
            for name, value in further.items()
            for word in words_of_flag(f"--{name}", value, known)
        )
        return self.parse_args([*line, *words])

    def format_help(self) -> str:
        if not self.most_used:
            return super().format_help()
        return short_page(self, self.examples, self.most_used)

    def flags_beside(self) -> Iterable[str]:
        return ROW_OF if self.takes_model else self.other_flags

    def _hints(self, message: str) -> Iterator[str]:
        yield from (f"  {note.flag}: {note.note}" for note in self._refused)
        yield from super()._hints(message)

    def _show_page_asked_for(self, words: Sequence[str]) -> None:
        asked = next((word for word in words if word.startswith("--help=")), None)
        if asked is None:
            return
        name = asked.removeprefix("--help=")
        page = super().format_help() if name == "all" else page_of(self, name)
        if page is None:
            self.error(f"{asked}: there is no such group or flag; --help lists the groups")
        self._print_message(page, sys.stdout)
        self.exit(0)


def _with_model_flag(words: Sequence[str]) -> list[str]:
    """Rewrite `atom serve MODEL …` as `atom serve --model MODEL …`."""
    if words and not words[0].startswith("-"):
        return ["--model", *words]
    return list(words)
