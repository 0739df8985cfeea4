"""The documentation site is whole: every page is reachable, and every link leads somewhere."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from atom.entrypoints.flags.upstream_switches import HONOURED, INSTEAD

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for entry in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from pages(entry)


def make_site(folder: Path, docs: Path, **settings: Any) -> None:
    config = load_config(
        str(ROOT / "mkdocs.yml"), docs_dir=str(docs), site_dir=str(folder), **settings
    )
    build(config)


def test_the_navigation_lists_every_page_once() -> None:
    listed = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_the_site_builds_with_a_front_page_that_asks_no_other_server(tmp_path: Path) -> None:
    make_site(tmp_path, DOCS)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "Quick start" in page
    assert re.findall(r'(?:src|<link[^>]+href)="(https?:[^"]*)', page) == []
    assert (tmp_path / "search" / "search_index.json").exists()


def test_guides_are_in_four_groups() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    groups = {name: set(pages(part)) for entry in nav for name, part in entry.items()}
    with_guides = [name for name, part in groups.items() if any("guides/" in p for p in part)]
    assert with_guides == ["Use", "Operate", "Integrate", "Extend"]


FAULTS = pytest.mark.parametrize(
    ("page", "text"),
    [
        ("index.md", "[a page](nowhere.md)"),
        ("index.md", "[a part](architecture.md#no-such-part)"),
        ("unlisted.md", "# A page that the navigation lacks"),
    ],
    ids=["dead link", "dead anchor", "unlisted page"],
)


@FAULTS
def test_a_dead_link_or_a_lost_page_fails_the_build(tmp_path: Path, page: str, text: str) -> None:
    """By the site's own settings; its pages and its navigation are two."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# Site\n\n[parts](architecture.md#parts)\n", encoding="utf-8")
    (docs / "architecture.md").write_text("# Architecture\n\n## Parts\n", encoding="utf-8")
    names = ["index.md", "architecture.md"]
    make_site(tmp_path / "whole", docs, nav=names)
    with (docs / page).open("a", encoding="utf-8") as file:
        file.write(f"\n{text}\n")
    with pytest.raises(Abort):
        make_site(tmp_path / "site", docs, nav=names)


@pytest.mark.whole
@FAULTS
def test_a_fault_in_all_of_the_site_fails_its_build(tmp_path: Path, page: str, text: str) -> None:
    docs = tmp_path / "docs"
    shutil.copytree(DOCS, docs)
    with (docs / page).open("a", encoding="utf-8") as file:
        file.write(f"\n{text}\n")
    with pytest.raises(Abort):
        make_site(tmp_path / "site", docs)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "devcluster/README.md"])
def test_links_of_pages_beside_the_site_lead_somewhere(name: str) -> None:
    file = ROOT / name
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", file.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (file.parent / target).exists(), f"{name}: {target}"


def test_the_guide_for_upstreams_users_names_every_variable() -> None:
    guide = (DOCS / "guides" / "from-upstream.md").read_text(encoding="utf-8")
    named = re.findall(r"`(ATOM_[A-Z0-9_]+)`", guide)
    assert sorted(named) == sorted([*HONOURED, *INSTEAD])


def test_the_changelog_is_for_those_who_upgrade() -> None:
    """It has the groups of Keep a Changelog, and can be read in one go."""
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    groups = {line.removeprefix("### ") for line in lines if line.startswith("### ")}
    known = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Upgrade notes"}
    assert groups <= known
    versions = [index for index, line in enumerate(lines) if line.startswith("## ")]
    ends = [*versions[1:], len(lines)]
    assert max(end - start for start, end in zip(versions, ends, strict=True)) <= 80
