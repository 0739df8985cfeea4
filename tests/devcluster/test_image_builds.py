"""When an image is built anew, and what of this machine reaches a build."""

from __future__ import annotations

import dataclasses
import json
import tarfile
from pathlib import Path

import pytest

from devcluster.errors import DevclusterError
from devcluster.images import archive, base_image, host_access, image_store, project_images
from devcluster.images.build_image import BuildRequest, check_tag, content_key


@pytest.fixture
def request_of_two_files(tmp_path: Path) -> BuildRequest:
    (tmp_path / "Dockerfile").write_text("FROM debian\nCOPY src /src\nARG A\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text("1")
    (tmp_path / "notes.md").write_text("not copied")
    return BuildRequest("localhost/x:dev", tmp_path / "Dockerfile", tmp_path)


def test_only_what_a_build_reads_changes_its_key(request_of_two_files: BuildRequest) -> None:
    folder = request_of_two_files.context
    before = content_key(request_of_two_files, "base")
    (folder / "notes.md").write_text("changed")
    assert content_key(request_of_two_files, "base") == before
    (folder / "src/a.py").write_text("2")
    assert content_key(request_of_two_files, "base") != before


def test_arguments_mode_bits_and_the_base_change_the_key(
    request_of_two_files: BuildRequest,
) -> None:
    with_argument = dataclasses.replace(request_of_two_files, arguments={"A": "1"})
    keys = [
        content_key(request_of_two_files, "base"),
        content_key(request_of_two_files, "another base"),
        content_key(with_argument, "base"),
    ]
    (request_of_two_files.context / "src/a.py").chmod(0o755)
    keys.append(content_key(request_of_two_files, "base"))
    assert len(set(keys)) == len(keys)


def test_an_incomplete_image_name_is_refused_with_a_complete_one() -> None:
    check_tag("localhost/atom-operator:dev")
    with pytest.raises(DevclusterError, match="localhost/atom:dev"):
        check_tag("atom")


def test_an_unknown_project_image_is_refused_with_the_known_ones() -> None:
    assert [r.tag for r in project_images.requests("operator, thin")] == [
        "localhost/atom-operator:dev",
        "localhost/atom-engine:thin",
    ]
    with pytest.raises(DevclusterError, match="thin, operator, runtime"):
        project_images.requests("gpu")


def test_pip_settings_reach_a_build_without_this_machines_paths() -> None:
    files = [
        "[global]\nindex-url = https://one.example/simple\ncert = /my/own\nfind-links = /wheels\n"
    ]
    text = host_access.pip_config(
        files, {"PIP_INDEX_URL": "https://two.example/simple", "PIP_DEFAULT_TIMEOUT": "9"}
    )
    assert "index-url = https://two.example/simple" in text
    assert "timeout = 9" in text
    assert "/wheels" not in text
    assert "/my/own" not in text


def test_a_percent_sign_in_a_pip_setting_is_taken_literally() -> None:
    text = host_access.pip_config(["[global]\nindex-url = https://u:p%40ss@one.example/\n"], {})
    assert "p%40ss" in text


def test_only_apt_settings_of_access_reach_a_build() -> None:
    dump = (
        'Acquire::Check-Date "false";\nAcquire::https::Proxy "http://p:1";\n'
        'DPkg::Post-Invoke "rm";\nDir "/";\n'
    )
    assert host_access.apt_config(dump).splitlines() == [
        'Acquire::Check-Date "false";',
        'Acquire::https::Proxy "http://p:1";',
    ]


@pytest.mark.parametrize(
    ("sources", "mirror"),
    [
        ("deb http://m.example/debian bookworm main\n", "http://m.example/debian"),
        (
            "deb [arch=amd64 trusted=yes] http://m.example/debian bookworm main\n",
            "http://m.example/debian",
        ),
        (
            "Types: deb\nURIs: http://d.example/debian\nSuites: bookworm bookworm-updates\n",
            "http://d.example/debian",
        ),
        ("Types: deb\nURIs: http://s.example/x\nSuites: bookworm-security\n", None),
        ("", None),
    ],
)
def test_the_base_image_comes_from_this_machines_mirror(sources: str, mirror: str | None) -> None:
    assert base_image.mirror_in(sources) == mirror


def test_an_image_that_no_name_means_any_more_is_forgotten() -> None:
    listing = """REF TYPE DIGEST SIZE PLATFORMS LABELS
localhost/a:dev application/x sha256:new 1.0 MiB linux/amd64 -
sha256:id-of-new application/x sha256:new 1.0 MiB linux/amd64 -
sha256:id-of-old application/x sha256:old 1.0 MiB linux/amd64 -
"""
    assert image_store.replaced_images(listing) == ["sha256:id-of-old"]


def test_a_packed_program_is_the_same_archive_every_time(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"#!")
    archives = [tmp_path / "1.tar", tmp_path / "2.tar"]
    for out in archives:
        archive.pack_program("localhost/p:dev", program, "p", out)
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as tar:
        manifest = json.load(tar.extractfile("manifest.json") or pytest.fail("no manifest"))
        with tarfile.open(fileobj=tar.extractfile("layer.tar")) as layer:
            assert layer.getmember("p").mode == 0o755
    assert manifest[0]["RepoTags"] == ["localhost/p:dev"]
