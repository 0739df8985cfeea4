"""`kubectl atom import`: its output, the secrets that it never prints, and the errors of unusable
inputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom_operator.kubectl_atom import main
from tests.support.peers.deployments import LEAST, MODEL, with_fields

ROOT = Path(__file__).resolve().parents[3]
SECRET = "hf_doNotPrintThisOne"
PLAIN_SECRET = "correct-horse-battery"
LINE = f"vllm serve {MODEL} --max-model-len 8k --max-num-seqs 64"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def to_file(*documents: Any, text: str | None = None) -> str:
        path = tmp_path / "input.yaml"
        path.write_text(yaml.safe_dump_all(documents) if text is None else text)
        return str(path)

    return to_file


def test_the_manifest_is_the_output_and_the_plan_is_beside_it(capsys: Any, tmp_path: Path) -> None:
    assert main(["import", LINE, "--product", "MI300X", "-n", "team"]) == 0
    printed = capsys.readouterr()
    (manifest,) = yaml.safe_load_all(printed.out)
    assert manifest["metadata"] == {"name": "qwen3-8b", "namespace": "team"}
    assert manifest["spec"]["model"] == {"source": f"hf://{MODEL}", "servedName": MODEL}
    assert "line 1 of the argument" in printed.err
    path = tmp_path / "chat.yaml"
    path.write_text(printed.out)
    assert main(["plan", "-f", str(path)]) == 0
    planned = capsys.readouterr().out
    assert planned.startswith("AtomDeployment team/qwen3-8b\n")
    assert printed.err.endswith(planned)


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_a_document_has_manifests_findings_and_plans(output: str, capsys: Any) -> None:
    line = f"{LINE} --swap-space 4 --disable-log-requests"
    assert main(["import", line, "--product", "MI300X", "-o", output]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    found = (json.loads if output == "json" else yaml.safe_load)(printed.out)
    assert found["manifests"][0]["spec"]["engine"] == {"maxModelLen": 8000, "maxNumSeqs": 64}
    (findings,) = found["findings"].values()
    assert [each["verdict"] for each in findings] == ["no counterpart", "not needed"]
    assert findings[0]["where"] == "line 1, word 8"
    assert found["plans"][0]["plan"]["capacity"]["fits"] == "True"


def test_several_documents_are_several_manifests(write: Any, capsys: Any) -> None:
    beside = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hf"}, "data": {}}
    documents = [LEAST["Model"], beside, LEAST["LLMInferenceService"]]
    assert main(["import", write(*documents), "--product", "MI300X"]) == 0
    printed = capsys.readouterr()
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(printed.out)]
    assert names == ["chat", "chat-2"]
    assert "document 2  Secret: is no deployment" in printed.err
    assert "another one has the name" in printed.err


def test_several_lines_are_several_manifests(write: Any, capsys: Any) -> None:
    text = (
        "#!/bin/bash\n# two servers\nexport A=1\n"
        f"vllm serve {MODEL} \\\n  --max-model-len 8192 \\\n  --tensor-parallel-size 2\n"
        "CUDA_VISIBLE_DEVICES=0 python3 -m sglang.launch_server --model-path org/other --tp 4\n"
    )
    main(["import", write(text=text)])
    first, second = yaml.safe_load_all(capsys.readouterr().out)
    assert first["spec"]["parallelism"] == {"tensor": 2}
    assert second["spec"] == {
        "model": {"source": "hf://org/other", "servedName": "org/other"},
        "parallelism": {"tensor": 4},
    }


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["/bin/sh", "-c", f"exec {LINE}"], "maxNumSeqs"),
        (["bash", "-c", f"pip list && {LINE}\nsleep 1"], "maxNumSeqs"),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--max-num-seqs", "64"], "max"),
        (["--max-num-seqs=64", "--max-model-len 8000"], "maxNumSeqs"),
    ],
)
def test_a_containers_command_is_read_in_every_form(
    words: list[str], path: str, write: Any, capsys: Any
) -> None:
    container = {"name": "main", "image": "vllm/vllm-openai", "command": words}
    document = with_fields("LLMInferenceService", ("spec.template", "containers", [container]))
    main(["import", write(document)])
    (manifest,) = yaml.safe_load_all(capsys.readouterr().out)
    assert manifest["spec"]["engine"]["maxNumSeqs"] == 64, path


def test_a_model_on_a_claim_is_found_through_the_mount(write: Any, capsys: Any) -> None:
    pod = {
        "containers": [
            {
                "name": "kserve-container",
                "image": "vllm/vllm-openai",
                "args": ["--model", "/data/llama/8b"],
                "volumeMounts": [{"name": "m", "mountPath": "/data"}],
            }
        ],
        "volumes": [{"name": "m", "persistentVolumeClaim": {"claimName": "models"}}],
    }
    document = {**LEAST["InferenceService"], "spec": {"predictor": pod}}
    main(["import", write(document)])
    (manifest,) = yaml.safe_load_all(capsys.readouterr().out)
    assert manifest["spec"]["model"] == {"source": "pvc://models/llama/8b", "servedName": "chat"}


def test_a_nims_model_is_that_of_its_cache(write: Any, capsys: Any) -> None:
    cache = {
        "apiVersion": "apps.nvidia.com/v1alpha1",
        "kind": "NIMCache",
        "metadata": {"name": "c"},
        "spec": {"source": {"hf": {"namespace": "Qwen", "modelName": "Qwen3-8B"}}},
    }
    document = with_fields("NIMService", ("spec.storage", "nimCache", {"name": "c"}))
    main(["import", write(cache, document)])
    (manifest,) = yaml.safe_load_all(capsys.readouterr().out)
    assert manifest["spec"]["model"] == {"source": f"hf://{MODEL}", "servedName": MODEL}


_ENV = [{"name": "DB_PASSWORD", "value": PLAIN_SECRET}, {"name": "A", "value": SECRET}]
SECRETS = {
    "env": ("LLMInferenceService", "spec.template", "containers", [{"name": "main", "env": _ENV}]),
    "map": ("Model", "spec", "env", {"HF_TOKEN": PLAIN_SECRET, "AWS_SECRET_ACCESS_KEY": SECRET}),
    "argument": ("Model", "spec", "args", ["--api-key", PLAIN_SECRET, f"--api-key={SECRET}"]),
    "wrong": ("Model", "spec", "args", [f"--ssl-keyfile-password={SECRET}", "--seed", SECRET]),
    "address": ("Model", "spec", "args", [f"--otlp-traces-endpoint=http://u:{SECRET}@h/"]),
    "unknown": ("Model", "spec", "noSuchField", {"password": PLAIN_SECRET, "token": SECRET}),
    "unknown flag": ("Model", "spec", "args", [f"--no-such-token={PLAIN_SECRET}", f"-x={SECRET}"]),
    "label": ("Model", "metadata", "annotations", {"a": SECRET}),
    "proxy": ("Model", "spec", "env", {"HTTPS_PROXY": f"http://me:{PLAIN_SECRET}@proxy.test"}),
    "location": ("Model", "spec", "url", f"https://u:{PLAIN_SECRET}@models.test/x"),
    "values": (
        "production-stack", "servingEngineSpec.modelSpec[0]", "hf_token", PLAIN_SECRET,
    ),
    "key": ("production-stack", "servingEngineSpec", "vllmApiKey", PLAIN_SECRET),
    "compose": ("Compose", "services.chat", "environment", [f"VLLM_API_KEY={PLAIN_SECRET}"]),
    "line": ("Compose", "services.chat", "command", f"--model {MODEL} --api-key {PLAIN_SECRET}"),
}  # fmt: skip


@pytest.mark.parametrize("case", SECRETS)
@pytest.mark.parametrize("output", ["text", "json"])
def test_no_output_has_a_secret(case: str, output: str, write: Any, capsys: Any) -> None:
    kind, place, name, value = SECRETS[case]
    main(["import", write(with_fields(kind, (place, name, value))), "-o", output])
    printed = capsys.readouterr()
    for secret in (SECRET, PLAIN_SECRET):
        assert secret not in printed.out + printed.err


def test_an_error_of_yaml_tells_the_place_and_not_the_line(write: Any, capsys: Any) -> None:
    path = write(text=f"kind: Model\nspec:\n  token: {PLAIN_SECRET}: [\n")
    assert main(["import", path]) == 2
    printed = capsys.readouterr()
    assert PLAIN_SECRET not in printed.err
    assert "line 3, column" in printed.err


_SKLEARN = {"predictor": {"model": {"modelFormat": {"name": "sklearn"}}}}
UNUSABLE = {
    "empty": ("", "is empty; give"),
    "a number": ("7", "holds no object; give"),
    "another kind": ("kind: Deployment\nmetadata: {name: a}", "holds Deployment; give"),
    "no kind": ("a: 1", "an object without a kind; give"),
    "another program": ("nginx -g x", "give"),
    "an open quotation": ("vllm serve 'a b", "no end; close it"),
    "no name": (yaml.safe_dump({**LEAST["Model"], "metadata": {}}), "metadata.name: is missing"),
    "a wrong type": (yaml.safe_dump({**LEAST["Model"], "spec": ["a"]}), "spec: must be an object"),
    "no language model": (
        yaml.safe_dump({**LEAST["InferenceService"], "spec": _SKLEARN}),
        "sklearn is no engine of language models",
    ),
    "speech": (yaml.safe_dump(with_fields("Model", ("spec", "engine", "FasterWhisper"))), "speech"),
    "no location": (
        yaml.safe_dump(with_fields("Model", ("spec", "url", "gs://bucket/model"))),
        "give --model SOURCE",
    ),
    "no server": ("services: {a: {image: nginx}}", "none runs vLLM or SGLang"),
    "no model": ("servingEngineSpec: {modelSpec: []}", "has no enabled model"),
    "not text": (None, "it is no UTF-8 text"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_an_unusable_input_is_one_error(case: str, write: Any, capsys: Any) -> None:
    text, words = UNUSABLE[case]
    path = write(text=text or "")
    if text is None:
        Path(path).write_bytes(b"\xff\xfe\x00")
    assert main(["import", path]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("import: ")
    assert words in printed.err.replace("\n", " ")


def test_a_missing_file_is_an_error(capsys: Any) -> None:
    assert main(["import", "no-such-file.yaml"]) == 2
    assert "give a file, - or a line in quotes" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["Model", "NIMService"])
def test_the_option_names_the_model_where_the_input_does_not(
    kind: str, write: Any, capsys: Any
) -> None:
    field = ("spec", "url", "ollama://x") if kind == "Model" else ("spec", "image", {})
    path = write(with_fields(kind, field))
    assert main(["import", path]) == 2
    capsys.readouterr()
    main(["import", path, "--model", "s3://bucket/model"])
    (manifest,) = yaml.safe_load_all(capsys.readouterr().out)
    assert manifest["spec"]["model"]["source"] == "s3://bucket/model"


def test_the_guides_example_is_what_the_command_prints(tmp_path: Path, capsys: Any) -> None:
    guide = (ROOT / "docs/guides/importing.md").read_text(encoding="utf-8")
    source, manifest, told = re.findall(r"^```\w+ title=[^\n]+\n(.*?)^```", guide, re.M | re.S)
    path = tmp_path / "model.yaml"
    path.write_text(source)
    assert main(["import", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.out == manifest
    assert printed.err.replace(str(path), "model.yaml").startswith(told)
