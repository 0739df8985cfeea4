"""A draft model's forward is that of an independent implementation, token by token.

Transformers' own layers for MTP, plain PyTorch for EAGLE-3, over whole sequences without a cache;
the engine computes the same in chunks, with drafts that hold and fail, in the blocks of its cache.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from atom.config import EngineOptions, build_config
from atom.errors import ConfigError
from atom.sampling_params import SamplingParams
from atom.sizing.engine_support import DRAFT_CHECKPOINT_METHODS
from atom.speculation.draft_model_proposer import DraftModelProposer
from atom.speculation.proposer import ComputedTokens, Drafting
from atom.speculative_config import SpeculativeConfig
from benchmarks.engines.offline_engine import OfflineEngine
from tests.engine.integration.models.test_model_parity import CHECKPOINTS
from tests.support.models.draft_checkpoints import (
    WEIGHTS,
    Tensors,
    add_mimo_mtp_layers,
    add_mtp_layer,
    add_qwen_mtp_layer,
    make_eagle3,
    write_weights,
)
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint

DRAFTS = 3
# token ids [T + 1], the model's hidden states of the first T → the draft model's [T, H]
Oracle = Callable[[torch.Tensor, Any], torch.Tensor]


@dataclass
class Seen:
    """What a draft model made of tokens, by position: the newest that held of each step."""

    hidden: dict[int, torch.Tensor] = field(default_factory=dict)
    drafts: dict[int, list[int]] = field(default_factory=dict)


def run(folder: Path, speculative: SpeculativeConfig, prompt: list[int]) -> tuple[list[int], Seen]:
    """The prompt's tokens with the answer's, and what was seen of the draft model meanwhile."""
    engine = OfflineEngine(
        str(folder), speculative=speculative, max_model_len=128, max_num_seqs=2,
        num_kv_blocks=96, max_num_batched_tokens=16,
    )  # fmt: skip
    seen, proposer = Seen(), engine.executor.runner.steps._proposer
    assert isinstance(proposer, DraftModelProposer)
    catch_up = proposer.catch_up

    def watched_catch_up(computed: ComputedTokens) -> None:
        catch_up(computed)
        for slot, newest in zip(computed.slots.tolist(), computed.newest.tolist(), strict=True):
            seen.hidden[int(computed.positions[newest])] = proposer._hidden[slot].clone()

    def watched(make: Callable[[Drafting], None]) -> Callable[[Drafting], None]:
        def draft(drafting: Drafting) -> None:
            make(drafting)
            made = drafting.drafts.token_ids[0, : int(drafting.ahead) + 1].tolist()
            seen.drafts[int(proposer._state.num_computed[drafting.slots[0]])] = made

        return draft

    proposer.catch_up = watched_catch_up  # type: ignore[method-assign]
    proposer.begin = watched(proposer.begin)  # type: ignore[method-assign]
    proposer.extend = watched(proposer.extend)  # type: ignore[method-assign]
    engine.add(prompt, SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True))
    tokens = list(prompt)
    while engine.has_work():
        result = engine.step()
        tokens += [token for _, run in result.runs() for token in run] if result else []
    engine.close()
    return tokens, seen


def mtp(folder: Path, layer: Tensors) -> Oracle:
    config = transformers.AutoConfig.from_pretrained(folder)
    config.num_hidden_layers += 1
    block = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, attn_implementation="eager", dtype=torch.float32
    )
    eps = config.rms_norm_eps

    def hidden(tokens: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        embedded = block.model.embed_tokens(tokens)
        parts = (rms(embedded, layer["enorm.weight"], eps), rms(states, layer["hnorm.weight"], eps))
        x = (torch.cat(parts, -1) @ layer["eh_proj.weight"].T).unsqueeze(0)
        positions = torch.arange(len(tokens)).unsqueeze(0)
        return block.model.layers[-1](
            x, attention_mask=causal(len(tokens)), position_ids=positions,
            position_embeddings=block.model.rotary_emb(x, positions),
        )[0].reshape(len(tokens), -1)  # fmt: skip

    return hidden


def eagle3(folder: Path, target: Any, tensors: Tensors) -> Oracle:
    raw = json.loads((folder / "config.json").read_text())
    heads, kv_heads, size = raw["num_attention_heads"], raw["num_key_value_heads"], raw["head_dim"]
    eps, w = raw["rms_norm_eps"], {name.removesuffix(".weight"): t for name, t in tensors.items()}

    def rope(x: torch.Tensor) -> torch.Tensor:  # [T, heads, D]
        angles = torch.arange(len(x))[:, None] * raw["rope_theta"] ** (
            -torch.arange(0, size, 2) / size
        )
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        one, two = x[..., : size // 2], x[..., size // 2 :]
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)

    def hidden(tokens: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        embedded = target.model.embed_tokens(tokens)
        x = torch.cat(
            [
                rms(embedded, w["midlayer.input_layernorm"], eps),
                rms(states, w["midlayer.hidden_norm"], eps),
            ],
            -1,
        )
        q, k, v = (
            (x @ w[f"midlayer.self_attn.{name}_proj"].T).unflatten(-1, (-1, size)) for name in "qkv"
        )
        k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (rope(k), v))
        scores = torch.einsum("qhd,khd->hqk", rope(q), k) * size**-0.5 + causal(len(tokens))[0]
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        out = states + attended @ w["midlayer.self_attn.o_proj"].T
        y = rms(out, w["midlayer.post_attention_layernorm"], eps)
        gated = torch.nn.functional.silu(y @ w["midlayer.mlp.gate_proj"].T)
        return out + (gated * (y @ w["midlayer.mlp.up_proj"].T)) @ w["midlayer.mlp.down_proj"].T

    return hidden


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


def causal(length: int) -> torch.Tensor:
    return torch.full((1, 1, length, length), -torch.inf).triu(1)


def check(
    tokens: list[int],
    seen: Seen,
    states: torch.Tensor,
    oracle: Oracle,
    draw: Callable[[torch.Tensor], int],
) -> None:
    """states [T, H]: the model's, as the draft model sees them, of all tokens but the last."""
    ids = torch.tensor(tokens)
    expected = oracle(ids[1:], states)
    assert len(seen.hidden) > 10
    assert len(seen.drafts) > 10
    for position, hidden in seen.hidden.items():
        assert torch.allclose(hidden, expected[position], atol=1e-4, rtol=0)
    for newest, drafts in seen.drafts.items():
        # On from what is behind the newest token, with drafts for tokens and its own for states.
        told, known = ids[1 : newest + 1], states[:newest]
        for drafted in drafts:
            made = oracle(told, known)[-1:]
            assert draw(made[0]) == drafted
            told, known = torch.cat([told, torch.tensor([drafted])]), torch.cat([known, made])


@pytest.mark.parametrize("architecture", ["deepseek3", "glm4_moe"])
def test_mtp_layers_compute_what_transformers_layers_do(
    tmp_path: Path, architecture: Architecture
) -> None:
    folder = make_tiny_checkpoint(tmp_path / architecture, architecture, seed=3)
    layer = add_mtp_layer(folder)
    prompt = np.random.default_rng(1).integers(3, 200, 37).tolist()
    asked = SpeculativeConfig(method="mtp", num_tokens=DRAFTS, adaptive=False)
    tokens, seen = run(folder, asked, prompt)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        states = model.model(torch.tensor([tokens])).last_hidden_state[0, :-1]

        def draw(hidden: torch.Tensor) -> int:
            normed = rms(hidden, layer["shared_head.norm.weight"], model.config.rms_norm_eps)
            return int(model.lm_head(normed).argmax())

        check(tokens, seen, states, mtp(folder, layer), draw)


def test_qwens_layer_computes_what_one_of_its_layers_does(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model", **CHECKPOINTS["qwen3-next"], seed=3)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tensors, config = load_file(folder / WEIGHTS), json.loads((folder / "config.json").read_text())
    layer = add_qwen_mtp_layer(folder)
    prompt = np.random.default_rng(1).integers(3, 200, 37).tolist()
    asked = SpeculativeConfig(method="mtp", num_tokens=DRAFTS, adaptive=False)
    tokens, seen = run(folder, asked, prompt)
    # One more layer of the model, as transformers has it, is the one that predicts.
    count, longer = config["num_hidden_layers"], tmp_path / "longer"
    shutil.copytree(folder, longer)
    kinds = [*config["layer_types"], "full_attention"]
    said = config | {"num_hidden_layers": count + 1, "layer_types": kinds}
    (longer / "config.json").write_text(json.dumps(said))
    own = {
        name.replace("layers.0.", f"model.layers.{count}.", 1): each
        for name, each in layer.items()
        if name.startswith("layers.0.")
    }
    write_weights(longer, tensors | own)
    block = transformers.AutoModelForCausalLM.from_pretrained(
        longer, attn_implementation="eager", dtype=torch.float32
    )
    eps = config["rms_norm_eps"]

    def hidden(ids: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        parts = (
            rms(block.model.embed_tokens(ids), 1 + layer["pre_fc_norm_embedding.weight"], eps),
            rms(states, 1 + layer["pre_fc_norm_hidden.weight"], eps),
        )
        x = (torch.cat(parts, -1) @ layer["fc.weight"].T).unsqueeze(0)
        positions = torch.arange(len(ids)).unsqueeze(0)
        found = block.model.layers[-1](
            x, attention_mask=causal(len(ids)), position_ids=positions,
            position_embeddings=block.model.rotary_emb(x, positions),
        )[0].reshape(len(ids), -1)  # fmt: skip
        return rms(found, 1 + layer["norm.weight"], eps)

    with torch.inference_mode():
        states = model.model(torch.tensor([tokens])).last_hidden_state[0, :-1]
        check(tokens, seen, states, hidden, lambda found: int(model.lm_head(found).argmax()))


def test_mimos_first_layer_computes_what_transformers_modules_do(tmp_path: Path) -> None:
    from transformers.models.mimo_v2_flash.modeling_mimo_v2_flash import (
        MiMoV2FlashAttention,
        MiMoV2FlashMLP,
    )

    folder = make_tiny_checkpoint(tmp_path / "mimo", **CHECKPOINTS["mimo-v2"], seed=3)
    layer = add_mimo_mtp_layers(folder)
    prompt = np.random.default_rng(1).integers(3, 200, 37).tolist()
    asked = SpeculativeConfig(method="mtp", num_tokens=DRAFTS, adaptive=False)
    tokens, seen = run(folder, asked, prompt)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    config, eps = model.config, model.config.rms_norm_eps
    attention = MiMoV2FlashAttention(config, config.layer_types.index("sliding_attention"))
    mlp = MiMoV2FlashMLP(config)
    for module, name in ((attention, "self_attn."), (mlp, "mlp.")):
        own = {each.removeprefix(name): t for each, t in layer.items() if each.startswith(name)}
        if module is attention:
            own["sinks"] = own.pop("attention_sink_bias")
        module.load_state_dict(own)

    def hidden(ids: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        parts = (
            rms(model.model.embed_tokens(ids), layer["enorm.weight"], eps),
            rms(states, layer["hnorm.weight"], eps),
        )
        x = (torch.cat(parts, -1) @ layer["eh_proj.weight"].T).unsqueeze(0)
        positions, length = torch.arange(len(ids)).unsqueeze(0), len(ids)
        beyond = torch.ones(length, length).tril(-config.sliding_window).bool()
        x = (
            x
            + attention(
                rms(x, layer["input_layernorm.weight"], eps),
                attention_mask=causal(length).masked_fill(beyond, -torch.inf),
                position_embeddings=model.model.rotary_emb(x, positions, "sliding_attention"),
            )[0]
        )
        return (x + mlp(rms(x, layer["pre_mlp_layernorm.weight"], eps)))[0]

    # What the model's last norm is given.
    given: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda norm, args: given.append(args[0]))
    with torch.inference_mode():
        model.model(torch.tensor([tokens]))

        def draw(found: torch.Tensor) -> int:
            return int(model.lm_head(rms(found, layer["final_layernorm.weight"], eps)).argmax())

        check(tokens, seen, given[0][0, :-1], hidden, draw)


def test_eagle3_computes_what_its_paper_says(tmp_path: Path) -> None:
    target = make_tiny_checkpoint(tmp_path / "llama", "llama", layers=8, seed=3)
    tensors = make_eagle3(tmp_path / "eagle3", target, draft_vocabulary=150)
    prompt = np.random.default_rng(1).integers(3, 200, 37).tolist()
    asked = SpeculativeConfig(
        method="eagle3", draft_model=str(tmp_path / "eagle3"), num_tokens=DRAFTS, adaptive=False
    )
    tokens, seen = run(target, asked, prompt)
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    with torch.inference_mode():
        found = model.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        # What is given to layers 2, n / 2 and n - 3 of n.
        aux = torch.cat([found[layer][0, :-1] for layer in (2, 4, 5)], -1)
        states = aux @ tensors["fc.weight"].T

        def draw(hidden: torch.Tensor) -> int:
            chosen = (
                rms(hidden, tensors["norm.weight"], 1e-5) @ tensors["lm_head.weight"].T
            ).argmax()
            return int(chosen + tensors["d2t"][chosen])

        check(tokens, seen, states, eagle3(tmp_path / "eagle3", model, tensors), draw)


def test_what_does_not_draft_for_a_model_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    small = make_tiny_checkpoint(tmp_path / "small", "llama", layers=2, hidden=32)
    model = make_tiny_checkpoint(tmp_path / "model", "llama", layers=7)
    make_eagle3(tmp_path / "eagle3", model, draft_vocabulary=50)
    for folder, draft, said in (
        (model, None, "num_nextn_predict_layers"),
        (model, small, "LlamaForCausalLM does not draft"),
        (small, tmp_path / "eagle3", "hidden_size 64 is not the model's 32"),
    ):
        method = "mtp" if draft is None else "eagle3"
        asked = SpeculativeConfig(method=method, draft_model=draft and str(draft))
        with pytest.raises(ConfigError, match=said):
            build_config(EngineOptions.of(model=str(folder), speculative=asked))
    for method in DRAFT_CHECKPOINT_METHODS:
        with pytest.raises(ConfigError, match=f"method {method} needs a draft model"):
            build_config(
                EngineOptions.of(model=str(model), speculative=SpeculativeConfig(method=method))
            )
