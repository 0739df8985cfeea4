"""Findings as lines for people, those without a counterpart first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from atom_operator.importing.results import Finding, Verdict

_TITLES = {
    Verdict.LEFT: "without a counterpart",
    Verdict.CHANGED: "not as it was written",
    Verdict.UNNEEDED: "nothing to set",
}


def finding_lines(title: str, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a line for each finding, below a head for each verdict."""
    yield title
    if not findings:
        yield "  every field has its counterpart"
    for verdict, words in _TITLES.items():
        of_verdict = list(dict.fromkeys(each for each in findings if each.verdict is verdict))
        if of_verdict:
            yield f"  {words}: {len(of_verdict)}"
            for each in of_verdict:
                yield f"    {each.where}  {each.text}"


def findings_document(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """Return the findings for programs."""
    return [
        {"where": each.where, "verdict": each.verdict.value, "text": each.text}
        for each in dict.fromkeys(findings)
    ]
