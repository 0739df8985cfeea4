"""Each JSON file of a checkpoint may be deep, huge or broken: one typed sentence, no traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from atom.checkpoint import open_checkpoint
from atom.end_tokens import end_token_ids
from atom.entrypoints.request_lines.batch_lines import custom_id_of, lines_of, read_request
from atom.errors import AtomError, ModelError, RequestError
from atom.lora_checkpoint import read_adapter_config
from atom.model_source.json_object import read_object
from atom.pooling_config import pooling_config

HOSTILE = {
    "nested lists": "[" * 500_000,
    "nested objects": '{"a":' * 500_000 + "1" + "}" * 500_000,
    "a field that is nested": '{"architectures": ' + "[" * 200_000 + "]" * 200_000 + "}",
    "many values": '{"a": [' + "[]," * 9_000_000 + "[]]}",
}


def _checkpoint(folder: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        if not (folder / name).exists():
            (folder / name).write_text("{}")
    open_checkpoint(folder)


def _index(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    open_checkpoint(folder).weight_files()


def _pooled(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    pooling_config(open_checkpoint(folder), "pooling", "embed")


READERS: dict[str, Callable[[Path], object]] = {
    "config.json": _checkpoint,
    "generation_config.json": _checkpoint,
    "model.safetensors.index.json": _index,
    "adapter_config.json": lambda folder: read_adapter_config(folder, 16),
    "tokenizer_config.json": lambda folder: read_object(folder / "tokenizer_config.json"),
    "modules.json": _pooled,
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("file", READERS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_named_in_one_sentence(tmp_path: Path, file: str, kind: str) -> None:
    (tmp_path / file).write_text(HOSTILE[kind])
    with pytest.raises(AtomError) as refusal:
        READERS[file](tmp_path)
    assert file in str(refusal.value)
    assert len(str(refusal.value)) < 400


def test_a_list_of_a_million_end_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": list(range(500_000))})
    )
    with pytest.raises(ModelError, match="eos_token_id lists 500000 ids"):
        end_token_ids(open_checkpoint(tmp_path))


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_line_of_a_batch_is_an_error_of_its_own(kind: str) -> None:
    line = HOSTILE[kind].encode()
    with pytest.raises(RequestError, match="line 7 is no request"):
        read_request(line, 7)
    assert custom_id_of(line) is None


def test_a_batch_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    request = {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "b"}}
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(request).encode() + b"\n")
    ((number, line),) = lines_of(file)
    assert read_request(line, number).custom_id == "a"
