"""Cost model of a product of few tokens with a tile: waves of programs that read the matrix.

Such a product is bound by reading its matrix once. A tile decides how many programs there are, how
many of them a multiprocessor holds at once, and how many bytes each has in flight (Little's law).
With too few bytes in flight, memory idles; with few programs in the last wave, most multiprocessors
idle. The constants were measured on one card and are stored with its tables. Pure; the model
compares tiles and does not predict a clock's time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from atom.model_ops.backends.triton_ops.compile.tuning import (
    LinearConfig,
    ReadingRates,
    SkinnyConfig,
    SplitKConfig,
)
from atom.model_ops.backends.triton_ops.launch import next_power_of_2

_THREADS, _REGISTERS, _PROGRAMS = 2048, 65_536, 32  # that a multiprocessor holds at once
_WARP = 32
_OWN_REGISTERS = 40  # of a thread, for addresses and counters
_LEAST_TOKENS = 16  # of a tile that the tensor core multiplies
_SPARE_BYTES = 1024  # of shared memory, that the system keeps of each program


@dataclass(frozen=True, slots=True)
class Card:
    """units: multiprocessors; shared_bytes: of memory that a program on one may have."""

    units: int
    shared_bytes: int
    rates: ReadingRates


@dataclass(frozen=True, slots=True)
class Product:
    """A product of `tokens` with a matrix [outputs, inner]; gated: its outputs are gate_proj's,
    then up_proj's."""

    outputs: int
    inner: int
    tokens: int
    element_bytes: int
    gated: bool = False

    @property
    def columns(self) -> int:
        """Return the columns of the result."""
        return self.outputs // 2 if self.gated else self.outputs


def fits(config: LinearConfig, product: Product, card: Card) -> bool:
    """Return whether the kernel supports the product's sizes, and the card the kernel's shared
    memory."""
    if isinstance(config, SplitKConfig) and (
        product.inner % (config.block_k * config.split_k) or product.columns % config.block_n
    ):
        return False
    return shared_bytes(config, product) <= card.shared_bytes


def seconds(config: LinearConfig, product: Product, card: Card) -> float:
    """Estimate the time of a configuration that fits, in seconds."""
    rates = card.rates
    programs = math.ceil(product.columns / config.block_n) * _slices(config)
    # A program also waits for the padding of its last tile.
    size = product.outputs * _padded_inner(config, product) * product.element_bytes / programs
    flight = _flight_bytes(config, product) / rates.latency_seconds
    alone = max(rates.latency_seconds, size / flight)  # one program, with memory to itself
    most = card.units * _resident(config, product, card)
    last = programs % most
    # Programs follow one another without waiting for a wave's end, but for the last ones.
    steady = (programs - last) * size / min(rates.bytes_per_second, most * size / alone)
    end = max(alone, last * size / rates.bytes_per_second) if last else 0.0
    return rates.launch_seconds + steady + end + _reduction_seconds(config, product, card)


def library_seconds(product: Product, card: Card) -> float:
    """Estimate the time of the library's product, in seconds, under favourable conditions."""
    rates = card.rates
    reading = product.outputs * product.inner * product.element_bytes / rates.bytes_per_second
    return rates.launch_seconds + rates.latency_seconds + reading / rates.library_share


def _padded_inner(config: LinearConfig, product: Product) -> int:
    """Return the inner size including the masked excess of a kernel's last tile."""
    step = config.block_k * config.split_k
    return math.ceil(product.inner / step) * step


def _slices(config: LinearConfig) -> int:
    """Return the number of programs that share an output's inner dimension."""
    return config.split_k if isinstance(config, SplitKConfig) else 1


def _stage_bytes(config: LinearConfig, product: Product) -> int:
    """Return the bytes of the matrix that a program reads at once."""
    slices = config.split_k if isinstance(config, SkinnyConfig) else 1 + product.gated
    return config.block_n * config.block_k * slices * product.element_bytes


def shared_bytes(config: LinearConfig, product: Product) -> int:
    """Return the shared memory, in bytes, of the tiles in flight, including activations, as Triton
    lays them out: a tile per stage, one less if the tensor core reads registers."""
    if _by_thread(config):
        return 0
    tokens, wide, tiles = _tile_tokens(config, product), config.block_k, config.num_stages
    if isinstance(config, SkinnyConfig):
        wide, tiles = wide * config.split_k, max(1, tiles - 1)
    stage = _stage_bytes(config, product) + tokens * wide * product.element_bytes
    return tiles * stage


def _tile_tokens(config: LinearConfig, product: Product) -> int:
    padded = next_power_of_2(product.tokens)
    if isinstance(config, SkinnyConfig):
        return max(_LEAST_TOKENS // 2, padded)
    return max(_LEAST_TOKENS, min(config.block_t, padded))


def _flight_bytes(config: LinearConfig, product: Product) -> int:
    """Return the bytes that a program has in flight: without the tensor core it reads nothing
    ahead."""
    tiles = _padded_inner(config, product) // (config.block_k * config.split_k)
    ahead = 1 if _by_thread(config) else max(1, min(config.num_stages - 1, tiles))
    return ahead * _stage_bytes(config, product)


def _resident(config: LinearConfig, product: Product, card: Card) -> int:
    """Return the number of programs that a multiprocessor holds at once."""
    threads = _WARP * config.num_warps
    shared = shared_bytes(config, product) + _SPARE_BYTES
    registers = threads * _OWN_REGISTERS + _held_numbers(config, product)
    return max(
        1,
        min(_PROGRAMS, _THREADS // threads, card.shared_bytes // shared, _REGISTERS // registers),
    )


def _held_numbers(config: LinearConfig, product: Product) -> int:
    """Return the registers of a program's sums, and of its tile if threads read it themselves."""
    tokens = next_power_of_2(product.tokens)
    if _by_thread(config):
        return config.block_n * config.block_k * (2 * tokens + 1) // 2
    slices = config.split_k if isinstance(config, SkinnyConfig) else 1 + product.gated
    return config.block_n * _tile_tokens(config, product) * slices


def _by_thread(config: LinearConfig) -> bool:
    return isinstance(config, SkinnyConfig) and config.kernel == "gemv"


def _reduction_seconds(config: LinearConfig, product: Product, card: Card) -> float:
    """Estimate the time of reducing parts, in seconds: they are written and read as float32, and
    stay in the card's cache."""
    if not isinstance(config, SplitKConfig) or config.split_k == 1:
        return 0.0
    moved = 2 * 4 * config.split_k * product.tokens * product.columns
    return moved / (2 * card.rates.bytes_per_second)
