"""Lines as people write them: the model as a word, vLLM's values, files of flags, pages of help."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from atom.config import EngineOptions, build_config
from atom.entrypoints.cli import build_parser
from atom.entrypoints.flags.engine_args import options_from_args
from atom.entrypoints.serve_options import server_options
from atom.entrypoints.server.server_options import ServerOptions
from atom.errors import ConfigError
from atom.model_engine.front.input_output_processor import InputOutputProcessor
from tests.support.engine_core.front_half import write_model_folder
from tests.support.engine_core.option_values import values_of

PARSER = build_parser()


def parse(*words: str) -> argparse.Namespace:
    return PARSER.parse_args(["serve", *words])


def engine(*words: str) -> EngineOptions:
    return options_from_args(parse(*words))


def server(*words: str) -> ServerOptions:
    return server_options(parse(*words))


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(*words)
    assert ended.value.code == 2
    return capsys.readouterr().err


# ---- the model ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["m --port 9", "--model m --port 9", "--port 9 m", "--model=m --port 9", "-tp 1 m"]
)
def test_the_model_is_a_word_or_a_flag(line: str) -> None:
    assert parse(*line.split()).model == "m"


def test_two_words_or_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unrecognized arguments: n" in refusal(capsys, "m", "n")
    assert "which model? atom serve MODEL" in refusal(capsys, "--port", "9")


def test_a_model_has_several_names() -> None:
    given = server("m", "--served-model-name", "a", "b", "--port", "9")
    assert given.served_names == ("a", "b")
    assert given.engine.checkpoint.served_model_name == "a"


# ---- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--dtype half", "dtype", "float16"), ("--dtype float", "dtype", "float32"),
        ("--dtype bfloat16", "dtype", "bfloat16"),
        ("--kv-cache-dtype fp8_e4m3", "kv_cache_dtype", "fp8"),
        ("--kv-cache-dtype bfloat16", "kv_cache_dtype", "bf16"),
        ("--max-model-len 2k", "max_model_len", 2000),
        ("--max-model-len 2K", "max_model_len", 2048),
        ("--max-model-len 1M", "max_model_len", 2**20),
        ("--max-model-len 1.5k", "max_model_len", 1500),
        ("--max-model-len auto", "max_model_len", None),
        ("--max-model-len -1", "max_model_len", None),
        ("--max-model-len=-1", "max_model_len", None), ("--context-length 9", "max_model_len", 9),
        ("--max-num-batched-tokens 8k", "max_num_batched_tokens", 8000),
        ("--tp 4", "tensor_parallel_size", 4), ("--tp-size=4", "tensor_parallel_size", 4),
        ("--disable-radix-cache", "enable_prefix_caching", False),
        ("--disable-cuda-graph", "enforce_eager", True), ("-q fp8", "quantization", "fp8"),
        ("--no-enforce-eager", "enforce_eager", False), ("--random-seed 7", "seed", 7),
        ("--load-format safetensors", "load_dummy", False),
    ],
)  # fmt: skip
def test_values_are_taken_in_vllms_and_sglangs_spelling(
    line: str, name: str, value: object
) -> None:
    assert getattr(values_of(engine("m", *line.split())), name) == value


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--max-model-len 2x", "no count of tokens"), ("--max-model-len 1.0005k", "no count"),
        ("--max-model-len -2", "no count"), ("--dtype int7", "auto, float32"),
        ("--kv-cache-dtype fp8_e5m2", "bf16, fp16"), ("--allowed-origins [1", "no JSON list"),
        ("--allowed-origins [1]", "neither"), ("--root-path a/b", "no prefix"),
        ("--ssl-cert-reqs 3", "none of none, optional, required"),
        ("--override-generation-config [1]", "JSON object"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_with_right_ones(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(capsys, "m", *line.split())


def test_origins_come_as_words_or_as_a_json_list() -> None:
    assert server("m", "--allowed-origins", '["*"]').listen.allowed_origins == ("*",)
    words = ("--allowed-origins", "http://a", '["http://b", "http://c"]')
    assert server("m", *words).listen.allowed_origins == ("http://a", "http://b", "http://c")


def test_keys_come_from_the_line_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ATOM_API_KEY", "of-environment")
    (tmp_path / "key").write_text("of-file\n")
    assert server("m").clients.api_keys == ("of-environment",)
    given = server("m", "--api-key", "a1", "b2", "--api-key", "c3")
    assert given.clients.api_keys == ("a1", "b2", "c3")
    assert "seen by everybody" in caplog.text
    assert "a1" not in caplog.text + repr(given)
    file = str(tmp_path / "key")
    both = server("m", "--api-key", "a1", "--api-key-file", file)
    assert both.clients.api_keys == ("a1",)
    assert both.clients.api_key_file is not None
    assert [each.key for each in both.clients.api_key_file.found] == ["of-file"]
    assert (both.clients.num_keys, "of-file" in repr(both)) == (2, False)
    assert server("m", "--api-key-file", file).clients.api_keys == ()


def test_tls_needs_files_that_belong_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs --ssl-certfile"):
        server("m", "--ssl-keyfile", "k")
    with pytest.raises(ConfigError, match="cannot be used"):
        server("m", "--ssl-certfile", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="needs --ssl-ca-certs"):
        server("m", "--ssl-certfile", "c", "--ssl-cert-reqs", "2")


def test_options_with_all_of_the_ports_flags_travel_to_other_processes() -> None:
    given = server("m", "--root-path", "/a/b/", "--default-chat-template-kwargs", '{"x": [1]}')
    assert (given.listen.root_path, given.chat.template_kwargs) == ("/a/b", {"x": [1]})
    assert ServerOptions.from_json(given.to_json()) == given


# ---- sampling defaults --------------------------------------------------------------------------


def test_sampling_defaults_are_the_models_a_folders_or_none_with_some_overridden(
    tmp_path: Path,
) -> None:
    write_model_folder(tmp_path / "m")
    other = tmp_path / "other"
    other.mkdir()
    (other / "generation_config.json").write_text(json.dumps({"top_k": 7, "temperature": 0.5}))
    model = str(tmp_path / "m")

    def defaults(*words: str) -> tuple[object, object]:
        found = build_config(engine(model, *words)).model.generation
        return found.temperature, found.top_k

    own = defaults()
    assert defaults("--generation-config", "auto") == own
    assert defaults("--generation-config", "vllm") == (None, None)
    assert defaults("--generation-config", str(other)) == (0.5, 7)
    override = ("--override-generation-config", '{"temperature": 0.125}')
    assert defaults(*override) == (0.125, own[1])
    assert defaults("--generation-config", str(other), *override) == (0.125, 7)
    with pytest.raises(ConfigError, match=r"no .*generation_config\.json; give auto, vllm"):
        defaults("--generation-config", str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="max_new_tokens is no sampling default"):
        defaults("--override-generation-config", '{"max_new_tokens": 5}')


# ---- files of flags -----------------------------------------------------------------------------


FILE = """
model: of-file
port: 9
max_model_len: 2k
served-model-name: [a, b]
enforce-eager: true
enable-prefix-caching: false
disable-access-log: false
tensor-parallel-size: 2
speculative-config: {method: ngram, num_speculative_tokens: 5}
op-backend: [attention=torch_ref]
revision: null
tp-size: 4
trust-remote-code: true
"""


def test_a_file_of_flags_is_read_and_the_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(FILE)
    given = server("--config", str(file), "--port", "10", "--no-enforce-eager")
    assert (given.listen.port, given.served_names, given.engine.checkpoint.model) == (
        10,
        ("a", "b"),
        "of-file",
    )
    assert (given.engine.model.max_model_len, given.engine.execution.enforce_eager) == (2000, False)
    assert (given.engine.cache.enable_prefix_caching, given.listen.access_log) == (False, True)
    assert given.engine.parallel.tensor_parallel_size == 4
    assert given.engine.speculative is not None
    assert given.engine.speculative.num_tokens == 5
    assert given.engine.execution.op_backends == {"attention": "torch_ref"}
    assert server("mine", f"--config={file}").engine.checkpoint.model == "mine"
    assert server("--config", str(file), "--model", "mine").engine.checkpoint.model == "mine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot: 9", "--prot: did you mean --port?"),
        ("lora-backend: csgmv", "--lora-backend: adapters are chosen"),
        ("- a", "must hold flag: value"), ("a: [", "is no YAML"), ("config: other", "cannot name"),
        ("7: 8", "must hold flag: value"), ("port: x", "--port"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_told(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(text)
    assert said in refusal(capsys, "m", "--config", str(file))


def test_a_missing_or_second_file_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot be read" in refusal(capsys, "m", "--config", "/nowhere/x.yaml")
    assert "name a YAML file" in refusal(capsys, "m", "--config")
    assert "2 times" in refusal(capsys, "m", "--config", "a", "--config", "b")


# ---- help ---------------------------------------------------------------------------------------


def page(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(*words)
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_help_is_short_with_examples_and_names_every_group(
    capsys: pytest.CaptureFixture[str],
) -> None:
    short = page(capsys, "--help")
    assert len(short.splitlines()) < 70
    assert "atom serve Qwen/Qwen3-0.6B" in short
    for group in ("model", "scheduling", "speculation", "device", "parallelism", "server", "tls"):
        assert f"\n  {group} " in short
        assert f"{group}" in page(capsys, f"--help={group}").lower()


def test_help_of_a_flag_and_of_everything(capsys: pytest.CaptureFixture[str]) -> None:
    one = page(capsys, "--help=kv_cache_dtype")
    assert "--kv-cache-dtype {auto,bf16,fp16,fp32,fp8}" in one
    assert "--port" not in one
    assert "--max-num-seqs N" in page(capsys, "m", "--help=seqs")
    every = page(capsys, "--help=all")
    for option in ("--node-rank N", "--ssl-keyfile FILE", "--drain-seconds"):
        assert option in every
    assert "no such group or flag" in refusal(capsys, "--help=frobnicate")


def test_help_says_the_kind_of_each_value() -> None:
    (commands,) = [each for each in PARSER._actions if isinstance(each.choices, dict)]
    parser = commands.choices["serve"]
    text = argparse.ArgumentParser.format_help(parser)
    for action in parser._actions:
        if action.nargs != 0 and action.option_strings and action.dest != "help":
            assert f"{action.option_strings[0]} {action.dest.upper()}" not in text


def test_help_says_what_runs_it() -> None:
    assert "NVIDIA" in PARSER.format_help()
    assert "CPU" in PARSER.format_help()


# ---- what goes with the checkpoint --------------------------------------------------------------


def test_another_tokenizer_is_read_from_its_folder(tmp_path: Path) -> None:
    write_model_folder(tmp_path / "m")
    write_model_folder(tmp_path / "t")
    (tmp_path / "m" / "tokenizer.json").unlink()
    config = build_config(engine(str(tmp_path / "m"), "--tokenizer", str(tmp_path / "t")))
    assert config.model.tokenizer_path == tmp_path / "t"
    processor = InputOutputProcessor(config)
    assert processor.inputs.tokenize("ab")
    assert processor.render_chat([{"role": "user", "content": "hi"}])
    own = build_config(engine(str(tmp_path / "t")))
    assert own.model.tokenizer_path == own.model.path


def test_the_method_of_a_quantised_checkpoint_may_be_named_and_no_other(tmp_path: Path) -> None:
    write_model_folder(tmp_path)
    file = tmp_path / "config.json"
    plain = json.loads(file.read_text())
    with pytest.raises(ConfigError, match="is a plain checkpoint, which is stored as fp8"):
        build_config(engine(str(tmp_path), "--quantization", "awq"))
    quantised = {
        "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    }  # fmt: skip
    file.write_text(json.dumps(plain | {"quantization_config": quantised}))
    as_it_is = build_config(engine(str(tmp_path))).model.facts.quantization
    assert as_it_is is not None
    for name in ("fp8", "fp8_marlin"):
        facts = build_config(engine(str(tmp_path), "--quantization", name)).model.facts
        assert facts.quantization == as_it_is
    with pytest.raises(ConfigError, match="is quantised already"):
        build_config(engine(str(tmp_path), "--quantization", "awq"))
