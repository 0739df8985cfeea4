"""What a build needs from this machine to reach the package indexes that this machine uses.

The settings of pip and apt are mounted into the build's RUN steps as files, and are in no layer of
the image. `pip_config` and `apt_config` are pure.
"""

from __future__ import annotations

import configparser
import io
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.shell import run

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
APT_KEYS = re.compile(
    r"^Acquire::(?:Check-Valid-Until|Check-Date|Retries"
    r'|https?::(?:[\w.]+::)?Proxy|https?::Timeout) ".+";$'
)


def pip_config(files: Iterable[str], environ: Mapping[str, str]) -> str:
    """A pip.conf from the texts of this machine's (weakest first) and its PIP_ variables."""
    merged = {"cert": str(CERTIFICATES)}
    for text in files:
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_string(text)
        for section in ("global", "install"):
            if parser.has_section(section):
                merged.update(
                    {key: value for key, value in parser.items(section) if key in PIP_KEYS}
                )
    for key in PIP_KEYS:
        variables = (
            ("PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT")
            if key == "timeout"
            else (f"PIP_{key.upper().replace('-', '_')}",)
        )
        given = [environ[variable] for variable in variables if environ.get(variable)]
        merged.update([(key, value) for value in given])
    result = configparser.ConfigParser(interpolation=None)
    result["global"] = merged
    out = io.StringIO()
    result.write(out)
    return out.getvalue()


def apt_config(dump: str) -> str:
    """Take from `apt-config dump` what decides how an archive is reached and whether its dates are
    trusted."""
    return "\n".join(line for line in dump.splitlines() if APT_KEYS.match(line)) + "\n"


def volumes(folder: Path, environ: Mapping[str, str]) -> list[str]:
    """`--volume` options for buildah; writes the mounted files to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    home = Path(environ.get("HOME") or "/root")
    candidates = [Path("/etc/pip.conf"), home / ".pip/pip.conf", home / ".config/pip/pip.conf"]
    if environ.get("PIP_CONFIG_FILE", os.devnull) != os.devnull:
        candidates.append(Path(environ["PIP_CONFIG_FILE"]))
    (folder / "pip.conf").write_text(
        pip_config([p.read_text() for p in candidates if p.is_file()], environ)
    )
    options = [f"--volume={folder / 'pip.conf'}:/etc/pip.conf:ro"]
    try:
        dump = run(["apt-config", "dump"], timeout_seconds=30)
    except DevclusterError:
        return options  # not a Debian machine: the image's own settings apply
    (folder / "apt.conf").write_text(apt_config(dump))
    return [*options, f"--volume={folder / 'apt.conf'}:/etc/apt/apt.conf.d/99build:ro"]
