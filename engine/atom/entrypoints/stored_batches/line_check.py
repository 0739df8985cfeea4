"""check_lines: finds the problems of a batch's file before any line is answered. Blocking; pure but
for reading the file."""

from __future__ import annotations

from pathlib import Path

from atom.entrypoints.http.body_budget import MAX_BODY_BYTES_WITH_IMAGES
from atom.entrypoints.http.errors import shortened
from atom.entrypoints.request_lines.batch_lines import lines_of, read_request
from atom.entrypoints.stored_batches.records import MOST_PROBLEMS, Problem
from atom.errors import RequestError

MOST_LINE_BYTES = MAX_BODY_BYTES_WITH_IMAGES + 2**20  # a body, and what is around it


def check_lines(path: Path, endpoint: str, most_lines: int) -> tuple[int, tuple[Problem, ...]]:
    """Return how many requests a file has, and its first problems. endpoint: of all of them."""
    problems: list[Problem] = []
    seen: set[str] = set()
    total = 0
    try:
        for number, line in lines_of(path, MOST_LINE_BYTES):
            total += 1
            if total > most_lines:
                message = f"a batch has at most {most_lines} requests (--batch-max-lines)"
                return total, (Problem("too_many_lines", message, number),)
            problem = _problem_of(line, number, endpoint, seen)
            if problem is not None:
                problems.append(problem)
                if len(problems) >= MOST_PROBLEMS:
                    break
    except RequestError as error:
        problems.append(Problem("line_too_long", str(error)))
    except OSError as error:
        problems.append(Problem("unreadable_file", f"the file cannot be read ({error.strerror})"))
    if not total and not problems:
        problems.append(Problem("empty_file", "the file has no request; give one per line"))
    return total, tuple(problems)


def _problem_of(line: bytes, number: int, endpoint: str, seen: set[str]) -> Problem | None:
    """Return the problem of a line. seen: names of the lines before, to which its own is added."""
    try:
        request = read_request(line, number)
    except RequestError as error:
        return Problem("invalid_line", str(error), number)
    if request.url != endpoint:
        message = f"line {number}: url is {request.url}, and the batch's endpoint is {endpoint}"
        return Problem("mismatched_url", message, number)
    if request.custom_id in seen:
        message = f"line {number}: custom_id {shortened(request.custom_id)!r} is another line's"
        return Problem("duplicate_custom_id", message, number)
    seen.add(request.custom_id)
    return None
