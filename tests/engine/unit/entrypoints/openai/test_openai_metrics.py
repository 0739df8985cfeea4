"""/metrics: what a scrape finds, and that Prometheus' own checker has nothing to say about it."""

from __future__ import annotations

import time

from prometheus_client.parser import text_string_to_metric_families

from atom.config import Config
from tests.support.cluster.promtool import COLON, metric_problems
from tests.support.engine_core.front_half import SERVED_NAME
from tests.support.server.http_app import AppRig, serve_app
from tests.support.waiting import eventually

LABEL = f'{{model_name="{SERVED_NAME}"}}'


async def scrape_after_a_chat(rig: AppRig) -> str:
    await rig.chat("abcd", max_tokens=5)
    rig.core.report_stats(
        requests_running=3, requests_waiting=1, requests_partial_prefill=2, kv_blocks_used=25,
        kv_blocks_indexed=40, kv_blocks_total=100, prompt_tokens_total=40,
        generation_tokens_total=50, cached_tokens_total=16, preemptions_total=2,
        cache_requests_total=4, cache_full_tokens_total=32,
    )  # fmt: skip
    await eventually(lambda: rig.engine.stats is not None, "statistics came")
    response = await rig.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    return response.text


async def test_metrics_tell_load_counts_and_latencies(rig: AppRig) -> None:
    text = await scrape_after_a_chat(rig)
    prompt = len(rig.core.added[0].prompt_token_ids)
    expected = {
        f"atom:requests_running{LABEL} 3.0",
        f"atom:requests_waiting{LABEL} 1.0",
        f"atom:requests_partial_prefill{LABEL} 2.0",
        f"atom:kv_cache_blocks_used{LABEL} 25.0",
        f"atom:kv_cache_blocks_free{LABEL} 75.0",
        f"atom:kv_cache_blocks_indexed{LABEL} 40.0",
        f"atom:kv_cache_blocks_total{LABEL} 100.0",
        f"atom:kv_cache_usage_ratio{LABEL} 0.25",
        'atom:cache_config_info{block_size="16",'
        f'model_name="{SERVED_NAME}",num_gpu_blocks="100"}} 1.0',
        f"atom:prefix_cache_hit_ratio{LABEL} 0.4",
        f"atom:prompt_tokens_total{LABEL} 40.0",
        f"atom:generation_tokens_total{LABEL} 50.0",
        f"atom:prefix_cache_cached_tokens_total{LABEL} 16.0",
        f"atom:prefix_cache_requests_total{LABEL} 4.0",
        f"atom:prefix_cache_full_tokens_total{LABEL} 32.0",
        f"atom:preemptions_total{LABEL} 2.0",
        f"atom:metrics_snapshot_available{LABEL} 1.0",
        f'atom:requests_finished_total{{finished_reason="length",model_name="{SERVED_NAME}"}} 1.0',
        f'atom:requests_finished_total{{finished_reason="abort",model_name="{SERVED_NAME}"}} 0.0',
        f"atom:time_to_first_token_seconds_count{LABEL} 1.0",
        f"atom:inter_token_latency_seconds_count{LABEL} 4.0",
        f"atom:e2e_request_latency_seconds_count{LABEL} 1.0",
        f"atom:request_queue_time_seconds_count{LABEL} 1.0",
        f"atom:request_prompt_tokens_sum{LABEL} {float(prompt)}",
        f"atom:request_generation_tokens_sum{LABEL} 5.0",
        "atom:ready 1.0",
    }
    assert expected - set(text.splitlines()) == set()


async def test_a_scrape_tells_how_evenly_experts_are_chosen_where_they_move(rig: AppRig) -> None:
    assert "expert" not in await scrape_after_a_chat(rig)
    rig.core.report_stats(expert_tokens_mean=60, expert_tokens_most=80, expert_moves_total=7)
    told = (await rig.client.get("/metrics")).text.splitlines()
    expected = {
        f"atom:expert_balance_ratio{LABEL} 0.75",
        f"atom:expert_moves_total{LABEL} 7.0",
    }
    assert expected <= {*told}


async def test_a_scrape_tells_how_old_its_numbers_are(rig: AppRig) -> None:
    before = time.time()
    (family,) = [
        family
        for family in text_string_to_metric_families(await scrape_after_a_chat(rig))
        if family.name == "atom:metrics_last_refresh_timestamp_seconds"
    ]
    assert before <= family.samples[0].value <= time.time()


async def test_before_the_engine_is_ready_a_scrape_tells_just_that(config: Config) -> None:
    async with serve_app(config, ready_on_start=False) as rig:
        lines = (await rig.client.get("/metrics")).text.splitlines()
    assert "atom:ready 0.0" in lines
    assert f"atom:metrics_snapshot_available{LABEL} 0.0" in lines


async def test_a_client_that_left_is_counted_as_aborted(rig: AppRig) -> None:
    rig.core.held = True
    body = {"prompt": "abcd", "stream": True}
    async with rig.client.stream("POST", "/v1/completions", json=body) as response:
        await eventually(lambda: bool(rig.core.added), "the request reached the engine")
        rig.core.step()
        await anext(response.aiter_bytes())
    await eventually(lambda: rig.core.aborted == [1], "it was aborted")
    lines = (await rig.client.get("/metrics")).text.splitlines()
    labels = f'{{finished_reason="abort",model_name="{SERVED_NAME}"}}'
    assert f"atom:requests_finished_total{labels} 1.0" in lines
    assert f"atom:request_generation_tokens_sum{LABEL} 1.0" in lines


async def test_histograms_are_whole(rig: AppRig) -> None:
    """Buckets grow up to the count, as Prometheus' quantiles need it."""
    families = text_string_to_metric_families(await scrape_after_a_chat(rig))
    histograms = [family for family in families if family.type == "histogram"]
    assert len(histograms) == 6
    for family in histograms:
        buckets = [s.value for s in family.samples if s.name.endswith("_bucket")]
        (count,) = [s.value for s in family.samples if s.name.endswith("_count")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == count > 0


async def test_promtool_finds_only_what_the_upstream_names_have(rig: AppRig) -> None:
    problems = metric_problems(await scrape_after_a_chat(rig))
    upstream = ("atom:kv_cache_blocks_total", 'non-counter metrics should not have "_total" suffix')
    assert {found for found in problems if found[1] != COLON} == {upstream}
    assert len(problems) > 20, "it saw the metrics"


async def test_a_scrape_tells_of_each_client_without_its_key(rig: AppRig) -> None:
    for key, count in (("sk-one", 2), ("sk-two", 1)):
        for _ in range(count):
            await rig.client.post(
                "/v1/completions",
                json={"prompt": "abcd", "max_tokens": 3},
                headers={"authorization": f"Bearer {key}"},
            )
    text = (await rig.client.get("/metrics")).text
    labels = [request.client_id for request in rig.core.added]
    for label, requests in ((labels[0], 2.0), (labels[2], 1.0)):
        series = f'{{client="{label}",model_name="{SERVED_NAME}"}}'
        assert f"atom:client_requests_total{series} {requests}" in text
        assert f"atom:client_prompt_tokens_total{series} {4 * requests}" in text
        assert f"atom:client_generation_tokens_total{series} {3 * requests}" in text
        assert f"atom:client_requests_waiting{series} 0.0" in text
    assert f'atom:client_requests_total{{client="other",model_name="{SERVED_NAME}"}} 0.0' in text
    assert "sk-" not in text
