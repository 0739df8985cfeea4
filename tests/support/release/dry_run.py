"""A dry run of a release: a registry on this machine, and this checkout's commit for it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from devcluster.programs.crane import ensure_crane
from devcluster.settings import REPOSITORY, read_settings
from tests.support.release.small_repository import exported, git
from tools.release import recipes, signing
from tools.release.contents import build_tools, contents, verify
from tools.release.provenance import Build


def crane_program() -> Path:
    return ensure_crane(read_settings(os.environ))


@contextmanager
def local_registry(
    folder: Path, address: str = "127.0.0.1", enter: Sequence[str] = ()
) -> Iterator[int]:
    """crane's registry, on a port that the system chose. enter: runs it in another place."""
    folder.mkdir(exist_ok=True)
    command = [*enter, str(crane_program()), "registry", "serve"]
    command += ["--address", f"{address}:0", "--disk", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            for line in server.stderr:
                if found := re.search(r"serving on (?:port |\S*:)(\d+)", line):
                    yield int(found.group(1))
                    break
            else:
                raise AssertionError("the registry ended before it served")
        finally:
            server.terminate()


def release_of_checkout(folder: Path, operator: str, keys: tuple[Path, Path]) -> Path:
    """The files of a release of this checkout's commit, signed. operator: its image, by digest."""
    git(folder, "clone", "--quiet", "--shared", str(REPOSITORY), "clone")
    source = exported(folder / "clone", folder / "export")
    images = recipes.named_images({"atom-operator": operator})
    build = Build("https://ci.test/builder", None, build_tools())
    made = folder / source.version
    made.mkdir()
    key = signing.read_private_key(keys[0], None)
    for name, data in contents(source, images, build, key).items():
        (made / name).write_bytes(data)
    verify(made, signing.read_public_key(keys[1]))
    return made
