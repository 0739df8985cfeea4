"""`python -m tools.release build|verify|publish|images`; see docs/guides/releases.md.

Exit codes: 0 done, 1 refused or failed (one line on standard error).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.images.build_image import BuildRequest, build_image
from devcluster.programs.crane import ensure_crane
from devcluster.settings import REPOSITORY, read_settings
from tools.release import recipes, signing
from tools.release.contents import build_tools, contents, verify
from tools.release.errors import ReleaseError
from tools.release.provenance import Build
from tools.release.recipes import RECIPES
from tools.release.registry import Registry
from tools.release.signing import PrivateKey
from tools.release.source import export

PASSWORD = "COSIGN_PASSWORD"
# Of Debian alone: AMD's base is in no reach of devcluster's builder.
BUILT_HERE = [recipe.image for recipe in RECIPES if not recipe.base_brings_torch]
OWN_MACHINE = "https://serving.atom.dev/builders/own-machine"


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = make_parser().parse_args(arguments)
    try:
        parsed.run(parsed)
    except (ReleaseError, DevclusterError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="make every file of a release from this commit")
    build.set_defaults(run=run_build)
    build.add_argument("--version", help="refuse to make another one than this")
    build.add_argument("--output", type=Path, default=Path("dist"), help="(default: dist)")
    build.add_argument("--repository", help="the URL that the commit is published at")
    build.add_argument("--downloads", help="the https:// address that the files will have")
    build.add_argument("--builder", default=OWN_MACHINE, help="a URI for who makes it")
    build.add_argument(
        "--image", action="append", default=[], metavar="NAME=REPOSITORY[:TAG]@sha256:…",
        help="an image that was built from the released recipe",
    )  # fmt: skip
    check = commands.add_parser("verify", help="check a release's signatures and checksums")
    check.set_defaults(run=run_verify)
    check.add_argument("folder", type=Path)
    check.add_argument("--key", type=Path, required=True, help="the public key, PEM")
    publish = commands.add_parser("publish", help="push the chart of a release, with signatures")
    publish.set_defaults(run=run_publish)
    publish.add_argument("folder", type=Path)
    images = commands.add_parser("images", help="build and push images on this machine (Debian)")
    images.set_defaults(run=run_images)
    images.add_argument("names", nargs="+", choices=BUILT_HERE)
    for pushes in (publish, images):
        pushes.add_argument("--registry", required=True, help="such as registry.example.com/atom")
    for signs in (build, publish, images):
        signs.add_argument("--key", type=Path, help=f"to sign with, PEM; its password: {PASSWORD}")
    return parser


def run_build(asked: argparse.Namespace) -> None:
    images = recipes.named_images(dict(text.partition("=")[::2] for text in asked.image))
    key = _private_key(asked)
    with tempfile.TemporaryDirectory() as folder:
        source = export(REPOSITORY, Path(folder), asked.version)
        build = Build(asked.builder, asked.repository, build_tools(), asked.downloads)
        files = contents(source, images, build, key)
    out: Path = asked.output / source.version
    if out.exists():
        raise ReleaseError(f"{out} is there already: remove it, or give another --output")
    out.mkdir(parents=True)
    for name, data in sorted(files.items()):
        (out / name).write_bytes(data)
        print(f"{len(data):>10,}  {name}")
    print(f"{out}: {source.version} of commit {source.commit}" + ("" if key else ", not signed"))


def run_verify(asked: argparse.Namespace) -> None:
    found = verify(asked.folder, signing.read_public_key(asked.key))
    print(f"{asked.folder}: {len(found)} files are what this key signed")


def run_publish(asked: argparse.Namespace) -> None:
    print(_registry(asked).push_chart(asked.folder, _private_key(asked)))


def run_images(asked: argparse.Namespace) -> None:
    """Print each as `build --image` takes it. The base is devcluster's own, of debootstrap: for a
    registry of tests, and not to be published."""
    registry, key = _registry(asked), _private_key(asked)
    with tempfile.TemporaryDirectory() as folder:
        source = export(REPOSITORY, Path(folder))
        for recipe in (recipe for recipe in RECIPES if recipe.image in asked.names):
            tag = f"{registry.name}/{recipe.image}:{source.version}"
            request = BuildRequest(
                tag, source.folder / recipe.dockerfile, source.folder,
                arguments={"VERSION": source.version, "REVISION": source.commit},
            )  # fmt: skip
            pushed = registry.push(build_image(read_settings(os.environ), request), tag)
            if key is not None:
                registry.sign(pushed, key)
            print(f"{recipe.image}={pushed}")


def _registry(asked: argparse.Namespace) -> Registry:
    return Registry(ensure_crane(read_settings(os.environ)), asked.registry)


def _private_key(asked: argparse.Namespace) -> PrivateKey | None:
    if asked.key is None:
        return None
    return signing.read_private_key(asked.key, os.environ.get(PASSWORD))


if __name__ == "__main__":
    sys.exit(main())
