from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atom import LLMEngine, SamplingParams
from atom.config import Config
from atom.errors import ConfigError, EngineDeadError, ModelError, RequestError
from atom.lora_config import LoraConfig, LoraModule
from tests.support.engine_core.front_half import EchoCore, build_test_config, write_model_folder


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return build_test_config(write_model_folder(tmp_path_factory.mktemp("model")))


class Rig:
    def __init__(self, config: Config, **core_options: Any) -> None:
        self.engine = LLMEngine(
            config=config, core_factory=lambda c, on_event: self._make(c, on_event, core_options)
        )

    def _make(self, config: Config, on_event: Any, options: dict[str, Any]) -> EchoCore:
        self.core = EchoCore(config, on_event, **options)
        return self.core


def test_answers_come_in_the_order_of_the_prompts(config: Config) -> None:
    engine = Rig(config, cached_tokens=1).engine
    answers = engine.generate(["abc", [5, 6]], SamplingParams(max_tokens=3), use_tqdm=False)
    assert answers[0]["text"] == "abc"
    assert answers[1]["token_ids"] == [5, 6, 5]
    assert [answer["num_tokens_input"] for answer in answers] == [3, 2]
    for answer in answers:
        assert answer["finish_reason"] == "length"
        assert answer["num_tokens_output"] == 3
        assert answer["num_tokens_cached"] == 1
        assert 0.0 <= answer["ttft"] <= answer["latency"]
        assert answer["tpot"] >= 0.0


def test_each_prompt_may_have_its_own_params(config: Config) -> None:
    engine = Rig(config).engine
    params = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=40, stop_strings=("b",))]
    answers = engine.generate(["abc", "abc"], params, use_tqdm=False)
    assert [answer["text"] for answer in answers] == ["a", "a"]
    assert [answer["finish_reason"] for answer in answers] == ["length", "stop"]
    with pytest.raises(RequestError, match="2 prompts but 1 sampling params"):
        engine.generate(["a", "b"], [SamplingParams()])


def test_each_prompt_may_have_an_adapter(config: Config) -> None:
    modules = tuple(LoraModule(name=name, path="") for name in ("sql", "legal"))
    rig = Rig(replace(config, lora=LoraConfig(modules=modules, max_cpu_loras=2)))
    own = [None, "legal", "sql", config.model.served_name]
    rig.engine.generate(["a"] * 4, SamplingParams(max_tokens=1), use_tqdm=False, model=own)
    rig.engine.generate(["a"], SamplingParams(max_tokens=1), use_tqdm=False, model="sql")
    numbers = [request.lora and request.lora.lora_int_id for request in rig.core.added]
    assert numbers == [None, 2, 1, None, 1]
    with pytest.raises(RequestError, match="no adapter 'law' is served; adapters: sql, legal"):
        rig.engine.generate(["a"], use_tqdm=False, model="law")
    with pytest.raises(RequestError, match="2 prompts but 1 models"):
        rig.engine.generate(["a", "b"], use_tqdm=False, model=["sql"])


def test_one_bad_prompt_refuses_the_call_before_anything_runs(config: Config) -> None:
    rig = Rig(config)
    with pytest.raises(RequestError, match="prompt is empty"):
        rig.engine.generate(["fine", ""], use_tqdm=False)
    assert rig.core.added == []
    assert rig.engine.generate(["fine"], use_tqdm=False)[0]["text"].startswith("fine")


def test_a_string_instead_of_a_list_is_refused(config: Config) -> None:
    with pytest.raises(RequestError, match="must be a list"):
        Rig(config).engine.generate("abc")


@pytest.mark.parametrize("prompt", [None, 5, b"bytes", [1.5], ["a"], {"prompt": "a"}])
def test_what_is_no_prompt_is_refused_with_what_would_be_one(config: Config, prompt: Any) -> None:
    rig = Rig(config)
    with pytest.raises(RequestError, match=r"text .* or a list of token ids"):
        rig.engine.generate([prompt], use_tqdm=False)
    assert rig.core.added == []


def test_a_dictionary_is_no_sampling_params(config: Config) -> None:
    params: Any = {"max_tokens": 3}
    with pytest.raises(RequestError, match="must be SamplingParams"):
        Rig(config).engine.generate(["a"], params, use_tqdm=False)


def test_leaving_a_stream_early_aborts_what_is_open(config: Config) -> None:
    rig = Rig(config)
    outputs = rig.engine.stream(["ab", "cd"], SamplingParams(max_tokens=9))
    assert next(outputs)[1].text == "a"
    outputs.close()  # type: ignore[attr-defined]
    assert rig.core.aborted == [1, 2]
    answers = rig.engine.generate(["xy"], SamplingParams(max_tokens=2), use_tqdm=False)
    assert answers[0]["text"] == "xy"


def test_a_second_iteration_is_refused_while_one_is_open(config: Config) -> None:
    engine = Rig(config).engine
    outputs = engine.stream(["abc"], SamplingParams(max_tokens=9))
    next(outputs)
    with pytest.raises(RequestError, match="still generating"):
        engine.generate(["x"], use_tqdm=False)
    outputs.close()  # type: ignore[attr-defined]
    engine.generate(["x"], use_tqdm=False)


def test_a_failed_start_raises_its_reason_and_cleans_up(config: Config) -> None:
    cores: list[EchoCore] = []

    class Failing(EchoCore):
        def start(self) -> None:
            cores.append(self)
            self.die("truncated file")

    with pytest.raises(EngineDeadError, match="truncated file"):
        LLMEngine(config=config, core_factory=Failing)
    assert cores[0].stopped


def test_a_dead_engine_ends_generation_with_the_reason(config: Config) -> None:
    rig = Rig(config, held=True)
    rig.core.die("killed by signal 9")
    with pytest.raises(EngineDeadError, match="killed by signal 9"):
        rig.engine.generate(["abc"], use_tqdm=False)
    with pytest.raises(EngineDeadError, match="closed"):
        rig.engine.generate(["abc"], use_tqdm=False)


def test_the_engine_process_ends_with_the_context_or_the_last_reference(config: Config) -> None:
    rig = Rig(config)
    with rig.engine:
        pass
    assert rig.core.stopped
    forgotten = Rig(config)
    core = forgotten.core
    del forgotten.engine
    gc.collect()
    assert core.stopped


def test_a_model_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        LLMEngine(model=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="either model"):
        LLMEngine()


def test_the_progress_bar_leaves_standard_output_alone(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    Rig(config).engine.generate(["abc", "abc"], SamplingParams(max_tokens=2))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "2/2" in printed.err
    assert "tokens/s" in printed.err
