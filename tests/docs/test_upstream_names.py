"""The page of upstream's names says what can be imported, and names all that the guides name."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs/guides/upstream-names.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| name")
]
DOTTED = re.compile(r"`(atom(?:\.\w+)+)`")

QUICK_REFERENCE = {
    "LLMEngine": "atom.model_engine.llm_engine",
    "InputOutputProcessor": "atom.model_engine.llm_engine",
    "CoreManager": "atom.model_engine.engine_core_mgr",
    "EngineCore": "atom.model_engine.engine_core",
    "DPEngineCoreProc": "atom.model_engine.engine_core",
    "ModelRunner": "atom.model_engine.model_runner",
    "Scheduler": "atom.model_engine.scheduler",
    "BlockManager": "atom.model_engine.block_manager",
    "Sequence": "atom.model_engine.sequence",
    "ForwardContext": "atom.utils.forward_context",
    "Config": "atom.config",
}
# Every other class and function that the three guides name.
NAMED = """
    AsyncIOProcManager AsyncIOProc EngineCoreRequestType SamplingParams ScheduledBatch
    ScheduledBatchOutput SequenceStatus SequenceType RequestOutput Block support_model_arch_dict
    tokenIDProcessor EagleProposer AttentionMetaData Context DPMetadata SpecDecodeMetadata
    KVCacheTensor set_forward_context get_forward_context reset_forward_context set_kv_cache_data
    ParallelConfig CompilationConfig LayerQuantConfig QuantizationConfig SpeculativeConfig
    init_dist_env dummy_prefill_execution num_tokens_across_dp chunked_sizes LinearBase
    ReplicatedLinear MergedReplicatedLinear ColumnParallelLinear RowParallelLinear
    QKVParallelLinear MergedColumnParallelLinear get_hip_quant process_weights_after_loading
    shuffle_weights requantize_with_max_scale Attention MLAAttention MLAModules AttentionBackend
    AiterBackend AiterMLABackend get_attn_backend AttentionMetadataBuilder CommonAttentionBuilder
    unified_attention_with_output_base mark_spliting_op rope_cache FusedMoE select_experts
    init_aiter_topK_meta_data is_rocm_aiter_fusion_shared_expert_enabled FusedMoEParallelConfig
    FusedMoEQuantConfig FusedMoEQuantDesc fp8_w8a8_moe_quant_config mxfp4_w4a16_moe_quant_config
    FusedMoEModularKernel MoriPrepareAndFinalize triton_kernel_moe_forward RMSNorm LayerNorm
    SiluAndMul VocabParallelEmbedding ParallelLMHead RotaryEmbedding get_rope Sampler
    RejectionSampler compute_hash can_allocate can_append may_append preempt update_spec_stats
    stream_callback spec_token_ids mtp_k
"""


@pytest.mark.parametrize("name", QUICK_REFERENCE)
def test_the_quick_reference_imports_as_named(name: str) -> None:
    assert hasattr(importlib.import_module(QUICK_REFERENCE[name]), name)
    assert f"| `{name}` | `{QUICK_REFERENCE[name]}.{name}` |" in PAGE


@pytest.mark.parametrize("path", sorted(set(DOTTED.findall("\n".join(r[1] for r in ROWS)))))
def test_what_the_page_says_to_import_can_be_imported(path: str) -> None:
    assert resolve_name(path) is not None


def test_every_name_of_the_guides_has_a_row() -> None:
    listed = {name for row in ROWS for name in re.findall(r"`([\w.]+)`", row[0])}
    assert sorted({*NAMED.split(), *QUICK_REFERENCE} - listed) == []


def test_every_row_says_where_or_why() -> None:
    assert [row for row in ROWS if not DOTTED.search(row[1]) and not row[2]] == []


def test_the_manager_of_processes_is_the_executor_that_has_some() -> None:
    from atom.model_engine.async_proc import AsyncIOProcManager
    from atom.model_engine.executor.tensor_parallel.executor import TensorParallelExecutor

    assert AsyncIOProcManager is TensorParallelExecutor
