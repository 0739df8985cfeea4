"""Judges a canary by its engines' counts and Prometheus's answers. Pure.

One broken bound fails it; otherwise a bound that cannot be judged yet leaves it undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from atom_operator.domain import RequestCounts
from atom_operator.domain.canary import CanaryAnalysis, CanaryQuery, Judgement


def judge(
    analysis: CanaryAnalysis,
    counts: Iterable[RequestCounts | None],
    values: Mapping[str, float | str],
) -> Judgement:
    """Judge a canary. `counts` are its engines', None of one that does not report; `values` by a
    query's name, in words if Prometheus has no value."""
    asked = list(counts)
    told = [found for found in asked if found is not None]
    found = list(_of_engines(analysis, told, len(asked) - len(told)))
    found += [
        _of_query(query, values.get(query.name, "it was not asked")) for query in analysis.queries
    ]
    for verdict in (False, None):
        words = [each.words for each in found if each.passes is verdict]
        if words:
            return Judgement(verdict, "; ".join(words))
    return Judgement(True, "; ".join(each.words for each in found))


def _of_engines(
    analysis: CanaryAnalysis, told: list[RequestCounts], silent: int
) -> Iterator[Judgement]:
    most, longest = analysis.most_errors_percent, analysis.most_first_token_milliseconds
    if most is None and longest is None:
        return
    ended, failed = sum(each.ended for each in told), sum(each.failed for each in told)
    if ended < analysis.min_requests:
        words = (
            f"its engines have ended {ended} of {analysis.min_requests} requests that are needed"
        )
        if silent:
            words += (
                f", and {silent} of {silent + len(told)} engines do not tell the operator of"
                " theirs: it asks /metrics on their port, which a NetworkPolicy or a mesh with"
                " STRICT mTLS must let through"
            )
        yield Judgement(None, words)
        return
    if most is not None:
        share = 100 * failed / ended
        yield Judgement(share <= most, f"{share:.1f}% of {ended} requests failed, {most}% may")
    tokens = sum(each.first_tokens for each in told)
    if longest is not None and tokens:
        mean = round(1000 * sum(each.first_token_seconds for each in told) / tokens)
        words = f"the first token takes {mean} ms on average, {longest} ms may"
        yield Judgement(mean <= longest, words)


def _of_query(query: CanaryQuery, value: float | str) -> Judgement:
    if isinstance(value, str):
        return Judgement(None, f"query {query.name}: {value}")
    words = f"query {query.name} is {value:g}"
    if query.least is not None and not value >= query.least:
        return Judgement(False, f"{words}, at least {query.least:g} is asked")
    if query.most is not None and not value <= query.most:
        return Judgement(False, f"{words}, at most {query.most:g} is asked")
    return Judgement(True, words)
