"""StatsBody: the gauges and running totals of one core, as it sends them with its messages."""

from __future__ import annotations

import msgspec


class CoreGauges(msgspec.Struct, frozen=True):
    """Gauges of one core's rows and blocks."""

    requests_running: int
    requests_waiting: int
    requests_partial_prefill: int  # of those running, with a part of the prompt still to compute
    kv_blocks_used: int
    kv_blocks_indexed: int  # that the prefix cache can find, held or not
    kv_blocks_total: int


class TokenTotals(CoreGauges, frozen=True):
    """Add the running totals of the core's steps and tokens."""

    preemptions_total: int
    prompt_tokens_total: int  # prompt tokens computed or taken from the cache
    cached_tokens_total: int  # of these, taken from the prefix cache
    cache_requests_total: int  # requests whose prompt was looked up in the cache
    cache_full_tokens_total: int  # tokens of these prompts
    generation_tokens_total: int
    steps_total: int


class TierTotals(TokenTotals, frozen=True):
    """Add the host's tier of the KV cache. queries: prompt tokens beyond the device's prefix that
    were looked up there; hits: of these, found; computed: of these, computed since that was
    predicted to be faster; dropped: pages that were not written, since too many were being written,
    every place was in use, or (cheap) they are computed faster than read. Seconds are those of
    copies."""

    offload_pages_used: int = 0
    offload_pages: int = 0
    offload_queries_total: int = 0
    offload_hits_total: int = 0
    offload_computed_total: int = 0
    offload_dropped_queue_total: int = 0
    offload_dropped_full_total: int = 0
    offload_dropped_cheap_total: int = 0
    offload_checksum_errors_total: int = 0
    offload_load_bytes_total: int = 0
    offload_load_seconds_total: float = 0.0
    offload_store_bytes_total: int = 0
    offload_store_seconds_total: float = 0.0


class DiskTotals(TierTotals, frozen=True):
    """Add the tier of the KV cache in files. bytes of use and size: of the whole folder; hits:
    prompt tokens that were found there; dropped: pages that were not written; seconds: while any
    file was read, or written; errors: by kind, damaged files among them."""

    offload_disk_pages: int = 0
    offload_disk_used_bytes: int = 0
    offload_disk_size_bytes: int = 0
    offload_disk_hits_total: int = 0
    offload_disk_dropped_total: int = 0
    offload_disk_load_bytes_total: int = 0
    offload_disk_load_seconds_total: float = 0.0
    offload_disk_store_bytes_total: int = 0
    offload_disk_store_seconds_total: float = 0.0
    offload_disk_errors_total: tuple[tuple[str, int], ...] = ()


class TransferTotals(DiskTotals, frozen=True):
    """Add the exchange of KV pages with other engines. kv_transfer_tickets: prompts whose pages are
    kept now; expired: of which no consumer was heard in time; checksum_errors: pages that arrived
    damaged; bytes: of pages."""

    kv_transfer_tickets: int = 0
    kv_transfer_expired_total: int = 0
    kv_transfer_checksum_errors_total: int = 0
    kv_transfer_sent_bytes_total: int = 0
    kv_transfer_received_bytes_total: int = 0


class ImageTotals(TransferTotals, frozen=True):
    """Add images. items: of prompts; hits: times that an image's outputs were kept from before;
    failures: images whose outputs were no numbers; encoder_seconds: that the encoded ones took;
    image_bytes: pixels of open requests."""

    image_items_total: int = 0
    image_hits_total: int = 0
    image_failures_total: int = 0
    images_encoded_total: int = 0
    encoder_seconds_total: float = 0.0
    image_bytes: int = 0


class StatsBody(ImageTotals, frozen=True, omit_defaults=True):
    """Gauges and running totals of one core. It travels in the message of every step, so what a
    core does not have is left out."""

    drafts_total: int = 0  # times that a row carried drafts in a step
    draft_tokens_total: int = 0  # of these
    accepted_tokens_total: int = 0  # of these, that held
    # Of ranks whose experts move: tokens of the last window, summed over layers, of the mean rank
    # and of the one with the most; slots whose expert changed.
    expert_tokens_mean: int = 0
    expert_tokens_most: int = 0
    expert_moves_total: int = 0
    guided_ended_for_work_total: int = 0  # sequences whose grammar took too much to follow
    running_loras: tuple[int, ...] = ()  # numbers of the adapters that rows run with
    waiting_loras: tuple[int, ...] = ()  # and of those of requests that wait
    accepted_at_totals: tuple[int, ...] = ()  # drafts whose first, second and so on token held
