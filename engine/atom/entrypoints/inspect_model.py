"""`python -m atom.entrypoints.inspect_model`: prints a model's config.json, without its weights.

The operator's inspection Job runs this program, for a folder (of the image, or on a claim), a GGUF
file, whose metadata are converted to a config.json, a hub id and a bucket alike. The answer, the
config packed to fit, is its last line of output and the pod's termination message. Exit codes: 0
found, 1 a fault that its one line explains.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import tempfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from atom.checkpoint import MODELOPT_FILE, open_checkpoint
from atom.entrypoints.flags.flag_parser import FlagParser
from atom.entrypoints.process.logs import print_error
from atom.entrypoints.process.process_conduct import (
    MOST_MESSAGE_BYTES,
    leave_message,
    open_standard_streams,
)
from atom.errors import AtomError, ModelError
from atom.model_source.hub_errors import hub_error
from atom.model_source.s3_snapshot import SCHEME, S3Source


def main(argv: Sequence[str] | None = None) -> int:
    """Print the config and return the exit code."""
    open_standard_streams()
    args = _parser().parse_args(argv)
    try:
        answer = {"model": args.model, "config": pack(read_config(args.model, args.revision))}
        if len(json.dumps(answer)) > MOST_MESSAGE_BYTES:
            raise ModelError(
                f"{args.model}: its config.json is too large to report; give it in a ConfigMap "
                "(spec.model.configRef)"
            )
    except AtomError as error:
        print_error(error)
        return 1
    print(json.dumps(answer))
    leave_message(answer)
    return 0


def read_config(model: str, revision: str | None) -> dict[str, object]:
    """Read the config.json of a folder, a GGUF file, a hub id or a bucket. Raises `ModelError`."""
    if model.startswith(SCHEME):
        return _config_of_bucket(model)
    folder = Path(model)
    if folder.exists() or folder.is_absolute():
        return open_checkpoint(folder).config
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    with tempfile.TemporaryDirectory() as temporary:
        try:
            hf_hub_download(model, "config.json", revision=revision, local_dir=temporary)
        except Exception as error:  # the hub client raises many unrelated types
            raise hub_error(model, revision or "main", error) from error
        if not _tells_format(Path(temporary)):
            with suppress(EntryNotFoundError):  # few repositories have it
                hf_hub_download(model, MODELOPT_FILE, revision=revision, local_dir=temporary)
        return open_checkpoint(Path(temporary)).config


def _config_of_bucket(model: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "config.json"
        source = S3Source(model)
        file.write_bytes(source.read(model, file.name))
        if not _tells_format(file.parent):
            with suppress(ModelError):  # few folders have it
                file.with_name(MODELOPT_FILE).write_bytes(source.read(model, MODELOPT_FILE))
        return open_checkpoint(file.parent).config


def _tells_format(folder: Path) -> bool:
    """Return whether a config.json tells of a quantisation."""
    return "quantization_config" in (folder / "config.json").read_text("utf-8", errors="replace")


def pack(config: dict[str, object]) -> str:
    """Return a JSON object as text that fits where few bytes do: deflated, in base64."""
    text = json.dumps(config, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(prog="atom-inspect", description="Report a model's config.json")
    parser.add_argument(
        "--model", required=True, help="checkpoint folder, GGUF file, hub id, or s3://bucket/prefix"
    )
    parser.add_argument("--revision", default=None, help="branch, tag or commit on the hub")
    return parser


if __name__ == "__main__":
    sys.exit(main())
