"""`import FILE`: another project's deployment as an AtomDeployment, with its plan. Prints.

The manifests go to standard output and the rest to standard error, so that the output can be piped
to kubectl. The plan is that of `kubectl atom plan`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, TypeAlias, get_args

import yaml

from atom_operator import plan_command
from atom_operator.api.v1alpha1.accelerator import ProductName
from atom_operator.importing.results import Finding, TranslationError
from atom_operator.plan_report import PlanReport, lines
from atom_operator.plugin.output import FORMATS, show_document, width, wrapped

_ERROR = 2
_Findings: TypeAlias = "list[tuple[str, tuple[Finding, ...]]]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `import`."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a KServe InferenceService or LLMInferenceService, a KubeAI Model, an NVIDIA "
        "NIMService, values of vLLM's production-stack, a Compose file, or a line: in a file, - "
        "for stdin, or 'vllm serve …' in quotes",
    )
    parser.add_argument(
        "--model",
        metavar="SOURCE",
        help="location of the model, such as hf://ORG/NAME, if the input has none that pods can "
        "reach",
    )
    parser.add_argument(
        "--product",
        choices=get_args(ProductName),
        help="AMD GPU of the nodes, by which the plan knows their memory",
    )
    parser.add_argument(
        "-n",
        "--namespace",
        default=argparse.SUPPRESS,
        help="of the manifests; default: that of the input",
    )
    plan_command.add_surroundings(parser)
    parser.add_argument(
        "-o",
        "--output",
        choices=FORMATS,
        default="text",
        help="text: manifests as YAML, findings and plan on stderr; json, yaml: all in one "
        "document; default: text",
    )


def run(options: argparse.Namespace) -> int:
    """Return 0 with manifests that can start, 1 with manifests that cannot, and 2 for an input that
    cannot be translated."""
    # The engine's parser of flags costs time that completion and help do not need.
    from atom_operator.importing.documents import deployments
    from atom_operator.importing.render import Given, renamed, render

    given = Given(options.model, options.product, getattr(options, "namespace", None))
    try:
        text, where = _text(options.file)
        imported, beside = deployments(text, where)
        rendered = renamed([render(each, given) for each in imported])
        manifests = [each.manifest for each in rendered]
        reports = plan_command.reports(manifests, options)
    except (TranslationError, plan_command.InputError) as error:
        for part in wrapped(f"import: {error}", width()):
            print(part, file=sys.stderr)
        return _ERROR
    findings = [(each.origin, each.findings) for each in rendered]
    findings += [(where, tuple(beside))] if beside else []
    if options.output == "text":
        sys.stdout.write(yaml.safe_dump_all(manifests, sort_keys=False, allow_unicode=True))
        _tell(findings, reports)
    else:
        show_document(_document(manifests, findings, reports), options.output)
    return 0 if all(report.can_start for report in reports) else 1


def _text(given: str) -> tuple[str, str]:
    """Return the input and its name. A word with spaces that is no file is a line itself."""
    if given == "-":
        return sys.stdin.read(), "stdin"
    path = Path(given)
    try:
        if not path.exists() and " " in given.strip():
            return given, "the argument"
        return path.read_text(encoding="utf-8"), given
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise TranslationError(
            f"{given[:200]}: cannot be read: {reason}; give a file, - or a line in quotes"
        ) from error


def _tell(findings: _Findings, reports: list[PlanReport]) -> None:
    from atom_operator.importing.report import finding_lines

    told = [line for title, found in findings for line in (*finding_lines(title, found), "")]
    told += [line for report in reports for line in lines(report)]
    columns = width()
    for line in told:
        for part in wrapped(line, columns):
            print(part, file=sys.stderr)


def _document(
    manifests: list[Any], findings: _Findings, reports: list[PlanReport]
) -> dict[str, Any]:
    from atom_operator.importing.report import findings_document

    return {
        "manifests": manifests,
        "findings": {title: findings_document(found) for title, found in findings},
        "plans": [plan_command.report_document(report) for report in reports],
    }
