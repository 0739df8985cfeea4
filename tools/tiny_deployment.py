"""An AtomDeployment of a model so small that it fits anywhere, for tests and benchmarks.

Values only; `changes` replace whole fields of the spec.
"""

from __future__ import annotations

from typing import Any

from atom_operator import constants

# About 1 MB of weights.
TINY_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def spec(**changes: Any) -> dict[str, Any]:
    """A raw spec for the model on the CPU."""
    base: dict[str, Any] = {
        "model": {"source": "path:///models/tiny", "config": TINY_CONFIG},
        "accelerator": {"type": "cpu"},
        "replicas": 1,
    }
    return {**base, **changes}


def atom_deployment(
    name: str = "chat", *, namespace: str = "default", **changes: Any
) -> dict[str, Any]:
    """The whole object as a user would apply it."""
    return {
        "apiVersion": constants.API_VERSION,
        "kind": constants.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec(**changes),
    }
