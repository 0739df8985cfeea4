"""`--config FILE`: a YAML file with flags, read as vLLM reads it; flags of the line win.

    model: Qwen/Qwen3-0.6B
    max-model-len: 32k
    enable-expert-parallel: true      # as the flag alone; false leaves it out
    served-model-name: [qwen, small]
    speculative-config: {method: ngram, num_speculative_tokens: 5}

Light to import: YAML is, when a file is given.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atom.errors import ConfigError

_FLAG = "--config"


def with_config_file(words: Sequence[str], known: Collection[str]) -> list[str]:
    """Insert the flags of the line's config file, if it names one, at the front. known: our flags;
    a false one is written --no-…, if that exists. Raises `ConfigError`."""
    rest: list[str] = []
    files: list[str] = []
    line = iter(words)
    for word in line:
        name, equals, value = word.partition("=")
        if name != _FLAG:
            rest.append(word)
            continue
        file = value if equals else next(line, "")
        if not file or file.startswith("-"):
            raise ConfigError("--config: name a YAML file with flags")
        files.append(file)
    if len(files) > 1:
        raise ConfigError(f"--config is given {len(files)} times; put all flags into one file")
    return [*(word for file in files for word in _words_of(Path(file), known)), *rest]


def _words_of(file: Path, known: Collection[str]) -> Iterator[str]:
    for key, value in _read(file).items():
        flag = f"--{key.replace('_', '-')}"
        if flag == _FLAG:
            raise ConfigError(f"{file}: config: a file cannot name another; put its flags here")
        yield from words_of_flag(flag, value, known)


def words_of_flag(flag: str, value: Any, known: Collection[str]) -> Iterator[str]:
    """Yield the words of a flag with this value, as YAML has it. known: as for
    `with_config_file`."""
    if value is None:
        return
    if isinstance(value, bool):
        off = f"--no-{flag.removeprefix('--')}"
        if value or off in known:
            yield flag if value else off
    elif isinstance(value, list):
        yield flag
        yield from map(_text, value)
    else:
        yield f"{flag}={_text(value)}"


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _read(file: Path) -> Mapping[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--config {file}: cannot be read ({error})") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {file}: is no YAML ({error}); write flag: value") from error
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConfigError(f"--config {file}: must hold flag: value, one a line, at its top")
    return found
