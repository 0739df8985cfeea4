"""What the HTTP edge needs of uvicorn's inside is there, and a version without it cannot serve."""

from __future__ import annotations

import re
from importlib.metadata import requires, version
from types import SimpleNamespace
from typing import Any

import pytest

from atom.entrypoints.cli import main
from atom.entrypoints.http import uvicorn_points
from atom.entrypoints.http.uvicorn_points import POINTS, Point, UvicornError, require_uvicorn

named = pytest.mark.parametrize("point", POINTS, ids=lambda p: f"{p.place.split(':')[1]}-{p.name}")


@named
def test_the_installed_uvicorn_has_the_point(point: Point) -> None:
    assert point.is_there(), f"{point.place} has no {point.name}: {point.purpose}"


@named
def test_a_version_without_the_point_is_refused_by_its_name(
    point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place stands in the module, with code that uses nothing."""
    find = uvicorn_points._find

    def without(place: str) -> Any:
        found = find(place)
        if place != point.place:
            return found
        return (lambda: None) if hasattr(found, "__code__") else SimpleNamespace()

    monkeypatch.setattr(uvicorn_points, "_find", without)
    with pytest.raises(UvicornError, match=rf"(?m)^  {re.escape(point.place)} {point.name}: "):
        require_uvicorn()


def test_a_version_that_moved_a_module_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = Point("protocols.http.elsewhere:HttpToolsProtocol.send", "keep_alive", "it was there")
    monkeypatch.setattr(uvicorn_points, "POINTS", (moved,))
    with pytest.raises(UvicornError, match="it was there"):
        require_uvicorn()


def test_atom_serve_says_so_in_place_of_starting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(uvicorn_points, "POINTS", (Point("server:Server", "gone", "it was there"),))
    assert main(["serve", "--model", "examples/models/atom-tiny"]) == 1
    told = capsys.readouterr().err
    assert f"uvicorn {version('uvicorn')} lacks" in told
    assert "server:Server gone: it was there" in told
    assert "Traceback" not in told


def test_the_package_admits_one_minor_version_alone() -> None:
    (asked,) = [line for line in requires("atom-platform") or () if line.startswith("uvicorn")]
    major, minor = version("uvicorn").split(".")[:2]
    assert re.search(rf"uvicorn(?=.*>={major}\.{minor})(?=.*<{major}\.{int(minor) + 1}\b)", asked)


def test_every_override_of_uvicorns_methods_is_a_listed_point() -> None:
    from uvicorn import Server
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    from atom.entrypoints.http.http_protocol import BoundedHttpProtocol
    from atom.entrypoints.server.http_process import HttpServer

    listed = {point.name for point in POINTS}
    for ours, theirs in ((BoundedHttpProtocol, HttpToolsProtocol), (HttpServer, Server)):
        overrides = {name for name in vars(ours) if name in vars(theirs)} - set(vars(object))
        assert {name for name in overrides if not name.startswith("__")} <= listed
