"""Completion of `kubectl atom …` in a shell: commands, flags, choices and names at the cursor.

Shells call back `kubectl-atom __complete WORDS` (kubectl itself: `kubectl_complete-atom WORDS`) and
get a candidate a line, then a directive of kubectl's own completion: `:4` no files, `:0` files too.
Reads the parser, so a new flag is completed without a word here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

SHELLS = ("bash", "zsh", "fish")
NO_FILES, FILES = ":4", ":0"
# Names of a kind in the cluster, from the user's own kubectl.
Names = Callable[[str], Sequence[str]]

_SCRIPTS = {
    "bash": """\
_kubectl_atom() {
    local answer candidates
    answer=$(kubectl-atom __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    candidates=$(sed '$d' <<<"$answer" | cut -f1)
    mapfile -t COMPREPLY < <(compgen -W "$candidates" -- "${COMP_WORDS[COMP_CWORD]}")
    if [[ ${answer##*:} == 0 ]]; then
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
    fi
}
complete -F _kubectl_atom kubectl-atom
""",
    "zsh": """\
#compdef kubectl-atom
_kubectl_atom() {
    local -a lines candidates
    lines=("${(@f)$(kubectl-atom __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    candidates=("${(@)${(@)lines[1,-2]}/$'\\t'/:}")
    _describe 'kubectl atom' candidates
    [[ ${lines[-1]} == ":0" ]] && _files
}
compdef _kubectl_atom kubectl-atom
""",
    "fish": """\
function __kubectl_atom
    set -l words (commandline -opc) (commandline -ct)
    set -l lines (kubectl-atom __complete $words[2..-1] 2>/dev/null)
    test (count $lines) -gt 1; and printf '%s\\n' $lines[1..-2]
    test "$lines[-1]" = ":0"; and __fish_complete_path (commandline -ct)
end
complete -c kubectl-atom -f -a '(__kubectl_atom)'
""",
}


def script(shell: str) -> str:
    """Return the script that the user sources."""
    return _SCRIPTS[shell]


def complete(parser: argparse.ArgumentParser, words: Sequence[str], names: Names) -> Iterator[str]:
    """Yield the candidates for the last word, each with its help after a tab, and the directive."""
    *before, current = words or ("",)
    here, used = _parser_of(parser, before)
    flag = _waits_for_value(here, before)
    if flag is not None:
        yield from _values(flag, current, names)
        return
    if current.startswith("-"):
        for action in _actions(here):
            for option in action.option_strings:
                if option.startswith("--") and option.startswith(current):
                    yield _described(option, action.help)
    else:
        yield from _positional(here, used, current, names)
    yield FILES if _takes_file(here, used) and not current.startswith("-") else NO_FILES


def _takes_file(parser: argparse.ArgumentParser, used: int) -> bool:
    """Return whether the next word of a command is a file."""
    wanted = [item for item in _actions(parser) if not item.option_strings]
    return used < len(wanted) and wanted[used].metavar == "FILE"


def _parser_of(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[argparse.ArgumentParser, int]:
    """Return the parser of the command among the words, and how many positional words it has."""
    used, skip = 0, False
    for number, word in enumerate(words):
        if skip:
            skip = False
            continue
        if word.startswith("-"):
            skip = "=" not in word and _waits_for_value(parser, words[: number + 1]) is not None
            continue
        commands = _commands(parser)
        if commands is not None and word in commands.choices:
            parser, used = commands.choices[word], 0
        else:
            used += 1
    return parser, used


def _commands(
    parser: argparse.ArgumentParser,
) -> argparse._SubParsersAction[argparse.ArgumentParser] | None:
    found = (item for item in _actions(parser) if isinstance(item, argparse._SubParsersAction))
    return next(found, None)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions


def _waits_for_value(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> argparse.Action | None:
    """Return the flag whose value comes next."""
    last = words[-1] if words else ""
    for action in _actions(parser):
        if last in action.option_strings and action.nargs != 0:
            return action
    return None


def _values(flag: argparse.Action, current: str, names: Names) -> Iterator[str]:
    if flag.choices is not None:
        yield from (str(item) for item in flag.choices if str(item).startswith(current))
    elif "--namespace" in flag.option_strings:
        yield from (name for name in names("namespaces") if name.startswith(current))
    elif "--context" in flag.option_strings:
        yield from (name for name in names("contexts") if name.startswith(current))
    yield FILES if flag.metavar == "FILE" else NO_FILES


def _positional(
    parser: argparse.ArgumentParser, used: int, current: str, names: Names
) -> Iterator[str]:
    commands = _commands(parser)
    if commands is not None:
        for choice in commands._choices_actions:
            if choice.dest.startswith(current):
                yield _described(choice.dest, choice.help)
        return
    wanted = [item for item in _actions(parser) if not item.option_strings]
    if used >= len(wanted) or _takes_file(parser, used):
        return
    if wanted[used].choices is not None:
        found: Sequence[str] = [str(item) for item in wanted[used].choices or ()]
    else:
        found = names("atomdeployments")
    yield from (name for name in found if name.startswith(current))


def _described(word: str, help_text: str | None) -> str:
    return f"{word}\t{help_text}" if help_text else word
