"""Reading Dockerfiles: stages, what a target needs and copies, what .dockerignore leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster.errors import DevclusterError
from devcluster.images.dockerfile import IgnoreRules, context_files, copied_sources, parse

TWO_STAGES = """
ARG BASE=debian
# a comment
FROM ${BASE} AS build
RUN apt-get update \\
    # a comment between the lines
    && apt-get install x
COPY src/ requirements.txt /build/

FROM debian AS other
COPY unrelated /

FROM ${BASE}
COPY --from=build --chown=1:1 /out /out
COPY ["a file", "/a"]
USER 1
"""


def test_stages_arguments_and_continued_lines_are_read() -> None:
    file = parse(TWO_STAGES)
    assert file.arguments == ("BASE=debian",)
    assert [stage.name for stage in file.stages] == ["build", "other", "2"]
    run = file.stages[0].instructions[0]
    assert (run.line, run.keyword, run.text) == (5, "RUN", "apt-get update && apt-get install x")


def test_a_target_needs_the_stages_that_it_copies_from_and_no_others() -> None:
    file = parse(TWO_STAGES)
    assert [stage.name for stage in file.needed_stages(None)] == ["build", "2"]
    assert [stage.name for stage in file.needed_stages("other")] == ["other"]


def test_sources_are_those_of_the_context_only() -> None:
    stages = parse(TWO_STAGES).needed_stages(None)
    assert copied_sources(stages) == ["src/", "requirements.txt", "a file"]


def test_a_bind_mount_counts_as_a_copy() -> None:
    text = (
        "FROM x\nRUN --mount=type=bind,source=lock.txt,target=/l --mount=type=cache,target=/c pip\n"
    )
    assert copied_sources(parse(text).stages) == ["lock.txt"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no FROM"),
        ("RUN x\n", "before the first FROM"),
        ("FROM x\nRUN <<EOF\n", "heredoc"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, reason: str) -> None:
    with pytest.raises(DevclusterError, match=reason):
        parse(text)


def test_an_unknown_target_is_refused_with_those_that_exist() -> None:
    with pytest.raises(DevclusterError, match="it has build, other, 2"):
        parse(TWO_STAGES).needed_stages("runtime")


@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        ("docs/index.md", True),
        ("engine/atom/config.py", False),
        ("engine/atom/ops/kernel.py", False),
        ("engine/atom/__pycache__/config.pyc", True),
        ("engine/other.py", True),
        ("requirements/a.txt", False),
        ("requirements/sub/a.txt", True),
    ],
)
def test_the_last_matching_ignore_rule_wins(path: str, ignored: bool) -> None:
    rules = IgnoreRules("# all\n*\n!engine/atom\n!requirements/*.txt\n**/__pycache__\n")
    assert rules.ignores(path) is ignored


def test_context_files_follow_folders_patterns_and_rules(tmp_path: Path) -> None:
    for name in ("src/a.py", "src/deep/b.py", "src/c.pyc", "one.txt", "two.txt", "other"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = context_files(tmp_path, ["src", "*.txt"], IgnoreRules("**/*.pyc\ntwo.txt"))
    assert [p.relative_to(tmp_path).as_posix() for p in found] == [
        "one.txt",
        "src/a.py",
        "src/deep/b.py",
    ]


def test_a_copied_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DevclusterError, match="copies absent"):
        context_files(tmp_path, ["absent"], IgnoreRules(""))
