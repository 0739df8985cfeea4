"""`kubectl atom`: the plug-in that kubectl finds as `kubectl-atom` in the PATH."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from atom.sizing.options.hinting_parser import HintingParser
from atom_operator.installation import tell_missing, version_line
from atom_operator.plugin import completion
from atom_operator.plugin.kubectl import Kubectl, KubectlError

_INTERRUPTED = 130  # as shells expect after Ctrl-C
_PIPE_CLOSED = 141  # and after SIGPIPE
_COMPLETE = "__complete"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 not ready or cannot start, 2 an error
    (one line on stderr), 130 interrupted, 141 the reader of the output has gone."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:  # without the packages that commands need
        print(version_line("kubectl-atom"))
        return 0
    try:
        code = _complete(words[1:]) if words[:1] == [_COMPLETE] else _run(words)
        sys.stdout.flush()
        return code
    except ModuleNotFoundError as error:
        return tell_missing(error, "kubectl-atom")
    except KubectlError as error:
        from atom_operator.plugin.output import width, wrapped

        for part in wrapped(f"error: {error}", width()):
            print(part, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the exit
        return _PIPE_CLOSED


def complete() -> int:
    """Answer kubectl's own completion, which calls `kubectl_complete-atom WORDS`."""
    return main([_COMPLETE, *sys.argv[1:]])


def _run(words: Sequence[str]) -> int:
    options = _parser().parse_args(words)
    if options.command == "plan":
        from atom_operator import plan_command

        return plan_command.run(options)
    if options.command == "import":
        from atom_operator import import_command

        return import_command.run(options)
    if options.command == "advise":
        from atom_operator import advise_command

        return advise_command.run(options, _kubectl(options))
    if options.command == "completion":
        print(completion.script(options.shell), end="")
        return 0
    kubectl = _kubectl(options)
    if kubectl.namespace is None:
        kubectl = Kubectl(kubectl.flags, kubectl.current_namespace())
    return int(options.run(kubectl, options))


def _kubectl(options: argparse.Namespace) -> Kubectl:
    flags = [
        f"--{name}={value}"
        for name in ("context", "kubeconfig")
        if (value := getattr(options, name, None)) is not None
    ]
    return Kubectl(tuple(flags), getattr(options, "namespace", None))


def _complete(words: Sequence[str]) -> int:
    from atom_operator.plugin.commands import add_global_flags

    globals_only = argparse.ArgumentParser(add_help=False)
    add_global_flags(globals_only)
    try:
        options = globals_only.parse_known_args(list(words[:-1]))[0]
    except SystemExit:  # a flag without its value yet
        options = argparse.Namespace()
    kubectl = _kubectl(options)
    print("\n".join(completion.complete(_parser(), words, kubectl.names)))
    return 0


def _parser() -> argparse.ArgumentParser:
    from atom_operator import advise_command, import_command, plan_command
    from atom_operator.plugin.commands import add_commands, add_global_flags

    parser = HintingParser(
        prog="kubectl atom", description="AtomDeployments, for the people who run them."
    )
    parser.add_argument("--version", action="version", version=version_line("kubectl-atom"))
    add_global_flags(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    plan = commands.add_parser(
        "plan", help="print what the operator would decide about a manifest, without a cluster"
    )
    plan_command.add_arguments(plan)
    imported = commands.add_parser(
        "import", help="translate another project's deployment into a manifest, with its plan"
    )
    import_command.add_arguments(imported)
    advice = commands.add_parser(
        "advise", help="say what to buy for a load, and how to run it, without a cluster"
    )
    advise_command.add_arguments(advice)
    add_commands(commands)
    shell = commands.add_parser(
        "completion", help="print what a shell sources to complete kubectl-atom"
    )
    shell.add_argument("shell", choices=completion.SHELLS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
