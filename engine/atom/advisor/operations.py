"""The bytes and products of a step by kind of operation, from the same facts as the memory plan.

`ModelWork` is compiled once from a model's facts and its division over ranks; `of_step` gives the
work of one rank in a step. Weights are read once a step, of the experts those that uniform routing
touches; of the cache, a decode reads the tokens that it attends to, and a chunk of a prompt the
tokens before it and its own. Pure; knows no card and no time.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from atom.advisor.attention_work import AttentionWork, attention_works
from atom.advisor.step_shape import StepShape
from atom.sizing.attention.kinds import StateAttention
from atom.sizing.cards import Precision
from atom.sizing.kv_layout import KvElement, state_terms
from atom.sizing.layers import Experts, LayerFacts
from atom.sizing.model_facts import ModelFacts
from atom.sizing.projection import Projection, Split
from atom.sizing.quantization import Quantization
from atom.sizing.quantization.format import Element
from atom.sizing.weights import Sharding
from atom.sizing.weights.layer_matrices import stored_projections

_ROUTED, _TABLES = "routed experts", "embedding and head"
_OF_EACH_LAYER = "embedding of each layer"
# Tokens from which a matrix of four bits is unpacked once and the library multiplies, instead of a
# kernel that unpacks its tiles (model_ops/backends/triton_ops/gemm).
UNPACKED_TOKENS = 512
_UNPACKED_BYTES = 2
_QUANTISED_BYTES = 3  # read in 16 bits, written in 8
_SUMS_OF_A_LAYER = 2  # after attention, and after the MLP


class Operation(enum.StrEnum):
    """The kinds of operations that a table has a rate of."""

    MATRICES = "matrices"
    PACKED = "packed matrices"
    UNPACKING = "unpacking"
    QUANTISING = "quantised inputs"
    EXPERTS = "experts"
    HEAD = "head"
    DECODE_ATTENTION = "decode attention"
    PROMPT_ATTENTION = "prompt attention"
    STATES = "states"
    COLLECTIVES = "collectives"


# Multiplications and additions, by the precision of the numbers.
Flops = tuple[tuple[Precision, float], ...]


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one kind of operation in a step, on one rank. moved_bytes: read and written, or
    sent to other ranks; width: the rows that share a read, by which rates differ."""

    operation: Operation
    moved_bytes: float
    flops: Flops
    width: float


@dataclass(frozen=True, slots=True)
class ExpertWork:
    """Routed experts of `layers` equal layers. read_bytes: of all of them; token_flops: of one
    token's."""

    experts: Experts
    layers: int
    read_bytes: float
    token_flops: Flops

    def touched(self, tokens: int) -> float:
        """Return the share of the experts that uniform routing of so many tokens touches."""
        return 1.0 - (1.0 - self.experts.per_token / self.experts.count) ** tokens


@dataclass(frozen=True, slots=True)
class PackedWork:
    """Matrices of four bits that are multiplied with wide inputs, on one rank. least_tokens: from
    which the kernel unpacks tiles; one token of int4 has a kernel that reads as plain ones do."""

    elements: int
    read_bytes: int
    least_tokens: int = 1


@dataclass(frozen=True, slots=True)
class HostWork:
    """The operations of a step that a host launches one by one, as counts of a model: its layers;
    layers of them with experts; products whose inputs are quantised or whose weights are unpacked;
    and sums of ranks. mixed: layers that attend for prompts and for answers, each by kernels of its
    own; 0 in a step of either alone."""

    layers: int = 0
    experts: int = 0
    quantised: int = 0
    sums: int = 0
    mixed: int = 0

    @classmethod
    def of(cls, facts: ModelFacts, ranks: int) -> HostWork:
        experts = quantised = 0
        for alike in facts.layer_counts:
            matrices = list(stored_projections(facts, alike.layer))
            experts += alike.count * any(each.copies > 1 for each in matrices)
            products = {
                _product_of(each)
                for each in matrices
                if each.quantization is not None and not each.absorbed
            }
            quantised += alike.count * len(products)
        sums = _SUMS_OF_A_LAYER * facts.num_layers if ranks > 1 else 0
        return cls(facts.num_layers, experts, quantised, sums)

    def beside_answers(self) -> HostWork:
        """Return the work of a step that has answers beside its prompts."""
        return replace(self, mixed=self.layers)


NO_HOST_WORK = HostWork()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """A model's work on one rank, ready to be asked for steps. matrices_bytes: of all weights that
    every step reads; head_bytes: of the matrix of logits; state_bytes: of one sequence's states;
    row_bytes: of a token's hidden state; ranks: that add up their sums; packed: matrices of four
    bits whose inputs are wide; quantised_inputs: numbers of a token that are rounded to eight bits
    for its products; launches: of a host that launches the operations one by one."""

    layers: int
    ranks: int
    row_bytes: int
    matrices_bytes: int
    matrices_flops: Flops
    experts: tuple[ExpertWork, ...]
    head_bytes: int
    head_flops: Flops
    attention: tuple[AttentionWork, ...]
    state_bytes: int = 0
    state_flops: float = 0.0
    packed: tuple[PackedWork, ...] = ()
    quantised_inputs: int = 0
    launches: HostWork = NO_HOST_WORK

    def of_step(self, shape: StepShape) -> Iterator[Work]:
        """Yield the work of each kind of operation that the step has."""
        tokens = shape.tokens
        padded = tokens + shape.padding
        yield from self._of_matrices(padded)
        if self.quantised_inputs:
            moved = _QUANTISED_BYTES * self.quantised_inputs * tokens
            yield Work(Operation.QUANTISING, float(moved), (), tokens)
        if self.experts:
            yield self._of_experts(tokens)
        if shape.sampled:
            flops = _times(self.head_flops, shape.sampled)
            yield Work(Operation.HEAD, float(self.head_bytes), flops, shape.sampled)
        if len(shape.contexts):
            yield self._of_decodes(shape)
        if shape.chunks:
            yield self._of_chunks(shape)
        if self.state_bytes:
            sequences = len(shape.contexts) + len(shape.chunks)
            flops = ((Precision.WIDE, self.state_flops * tokens),)
            yield Work(Operation.STATES, 2.0 * self.state_bytes * sequences, flops, tokens)
        if self.ranks > 1:
            yield self._of_sums(tokens)

    def _of_matrices(self, tokens: int) -> Iterator[Work]:
        """Yield the products of matrices, with the embedding, and those of packed ones apart if a
        kernel unpacks their tiles; else the unpacking."""
        moved, flops = float(self.matrices_bytes), _times(self.matrices_flops, tokens)
        packed = [each for each in self.packed if tokens >= each.least_tokens]
        elements = sum(each.elements for each in packed)
        read = float(sum(each.read_bytes for each in packed))
        if elements and tokens < UNPACKED_TOKENS:
            own = 2.0 * elements * tokens
            yield Work(Operation.PACKED, read, ((Precision.WIDE, own),), tokens)
            moved -= read
            flops = tuple((kind, count - own * (kind is Precision.WIDE)) for kind, count in flops)
        elif elements:
            written = _UNPACKED_BYTES * elements
            yield Work(Operation.UNPACKING, read + written, (), tokens)
            moved += written - read
        yield Work(Operation.MATRICES, moved + self.row_bytes * tokens, flops, tokens)

    def _of_experts(self, tokens: int) -> Work:
        moved, width, flops = 0.0, 0.0, dict[Precision, float]()
        for each in self.experts:
            share = each.touched(tokens)
            moved += each.read_bytes * share
            rows = tokens * each.experts.per_token / (each.experts.count * share)
            width = max(width, rows)
            for precision, count in each.token_flops:
                flops[precision] = flops.get(precision, 0.0) + count * tokens
        return Work(Operation.EXPERTS, moved, tuple(flops.items()), width)

    def _of_decodes(self, shape: StepShape) -> Work:
        moved = flops = 0.0
        each_row = shape.decode_tokens / len(shape.contexts)  # queries of a row, with drafts
        for attention in self.attention:
            seen = attention.seen(shape.contexts)
            moved += seen * attention.token_bytes + shape.decode_tokens * attention.written_bytes
            flops += seen * each_row * attention.decode_flops
            scored = int(shape.contexts.sum())
            moved += scored * attention.scored_bytes
            flops += scored * each_row * attention.scored_flops
        rows = len(shape.contexts)
        return Work(Operation.DECODE_ATTENTION, moved, ((Precision.WIDE, flops),), rows)

    def _of_chunks(self, shape: StepShape) -> Work:
        moved = flops = 0.0
        for attention in self.attention:
            for chunk in shape.chunks:
                read = attention.read_by(chunk)
                moved += read * attention.token_bytes + chunk.tokens * attention.written_bytes
                flops += attention.pairs(chunk) * attention.prompt_flops
                scored = chunk.computed + chunk.tokens
                moved += scored * attention.scored_bytes
                flops += scored * chunk.tokens * attention.scored_flops
        flops_by = ((Precision.WIDE, flops),)
        return Work(Operation.PROMPT_ATTENTION, moved, flops_by, shape.prompt_tokens)

    def _of_sums(self, tokens: int) -> Work:
        """Each rank sends its part of a sum once to be added, and once the result."""
        sums = _SUMS_OF_A_LAYER * self.layers
        moved = 2.0 * (self.ranks - 1) / self.ranks * sums * tokens * self.row_bytes
        return Work(Operation.COLLECTIVES, moved, (), tokens)


def model_work(
    facts: ModelFacts,
    kv: KvElement,
    sharding: Sharding,
    *,
    element_bytes: int | None = None,
    block_size: int = 16,
) -> ModelWork:
    """Compile a model's work on one rank. element_bytes: of every weight; None for the checkpoint's
    formats, as in the plan of its memory."""
    ranks = sharding.tensor_parallel
    element = facts.weight_dtype_bytes if element_bytes is None else element_bytes
    sizes = {
        part.name: part.size_bytes for part in facts.weight_parts(element_bytes, sharding, False)
    }
    vocabulary = -(-facts.vocab_size // ranks)
    head_bytes = vocabulary * facts.hidden_size * element
    read = sum(
        size for name, size in sizes.items() if name not in (_ROUTED, _TABLES, _OF_EACH_LAYER)
    )
    plain, routed = dict[Precision, float](), list[ExpertWork]()
    packed, quantised = list[PackedWork](), 0
    for alike in facts.layer_counts:
        matrices = tuple(stored_projections(facts, alike.layer))
        single = [each for each in matrices if each.copies == 1]
        for precision, count in _flops_of(single, ranks, element_bytes):
            plain[precision] = plain.get(precision, 0.0) + alike.count * count
        for each in single if element_bytes is None else ():
            stored = each.quantization
            if stored is not None and _is_packed(stored) and not each.absorbed:
                rows, columns = each.on_rank(ranks)
                size = alike.count * stored.matrix_bytes(rows, columns)
                least = 2 if stored.element is Element.INT4 else 1
                packed.append(PackedWork(alike.count * rows * columns, size, least))
        if element_bytes is None:
            quantised += alike.count * _quantised_inputs(alike.layer, matrices, ranks)
        copies = [each for each in matrices if each.copies > 1]
        if copies:
            routed.append(_expert_work(alike.layer, alike.count, copies, (sharding, element_bytes)))
    states = state_terms(facts, ranks)
    return ModelWork(
        layers=facts.num_layers,
        ranks=ranks,
        row_bytes=facts.hidden_size * element,
        matrices_bytes=read,
        matrices_flops=tuple(plain.items()),
        experts=tuple(_share_out(routed, sizes.get(_ROUTED, 0))),
        head_bytes=head_bytes,
        head_flops=((Precision.WIDE, 2.0 * vocabulary * facts.hidden_size),),
        attention=attention_works(facts, kv, ranks, block_size),
        state_bytes=sum(term.layers * term.state_bytes for term in states),
        state_flops=_state_flops(facts) / ranks,
        packed=tuple(packed),
        quantised_inputs=quantised,
        launches=HostWork.of(facts, ranks),
    )


def _quantised_inputs(layer: LayerFacts, matrices: Sequence[Projection], ranks: int) -> int:
    """Count a token's numbers that are rounded to eight bits for the products of a layer."""
    found = dict[str, int]()
    for each in matrices:
        stored = each.quantization
        if stored is not None and stored.input_bits == 8 and not each.absorbed:
            experts = layer.mlp.experts if each.copies > 1 else None
            times = 1 if experts is None else experts.per_token
            found[_product_of(each)] = times * each.on_rank(ranks)[1]
    return sum(found.values())


def _product_of(matrix: Projection) -> str:
    """Name the product that a matrix is part of: matrices of a module that share their inputs are
    multiplied at once, as are stacks of experts."""
    if matrix.copies > 1:
        return matrix.stack_name
    module = matrix.name.rpartition(".")[0]
    return module if matrix.split is Split.OUTPUTS else matrix.name


def _is_packed(stored: Quantization) -> bool:
    return stored.bits < 8 and _precision(stored) is Precision.WIDE


def _expert_work(
    layer: LayerFacts,
    layers: int,
    copies: Sequence[Projection],
    division: tuple[Sharding, int | None],
) -> ExpertWork:
    sharding, element_bytes = division
    experts = layer.mlp.experts
    assert experts is not None, "copies are experts"
    # With whole experts on each rank, a rank computes its share of the tokens' experts.
    ranks = 1 if sharding.expert_parallel else sharding.tensor_parallel
    part = experts.per_token / sharding.expert_ranks
    flops = [
        (each, layers * part * count) for each, count in _flops_of(copies, ranks, element_bytes)
    ]
    elements = sum(each.copies * each.rows * each.columns for each in copies) * layers
    return ExpertWork(experts, layers, float(elements), tuple(flops))


def _share_out(routed: Sequence[ExpertWork], size_bytes: int) -> list[ExpertWork]:
    """Divide the bytes of all routed experts among the kinds of layers by their elements."""
    elements = sum(each.read_bytes for each in routed)
    return [
        ExpertWork(
            each.experts, each.layers, size_bytes * each.read_bytes / elements, each.token_flops
        )
        for each in routed
    ]


def _flops_of(matrices: Sequence[Projection], ranks: int, element_bytes: int | None) -> Flops:
    """Count a token's products with one copy of each matrix on a rank."""
    found = dict[Precision, float]()
    for matrix in matrices:
        rows, columns = matrix.on_rank(ranks)
        plain = element_bytes is not None or matrix.absorbed
        precision = Precision.WIDE if plain else _precision(matrix.quantization)
        found[precision] = found.get(precision, 0.0) + 2.0 * rows * columns
    return tuple(found.items())


def _precision(stored: Quantization | None) -> Precision:
    """Return the precision in which a matrix is multiplied: if its activations stay wide, so does
    the product."""
    if stored is None or stored.input_bits > 8:
        return Precision.WIDE
    if stored.element is Element.FP4 and stored.input_bits == 4:
        return Precision.FP4
    return Precision.FP8


def _state_flops(facts: ModelFacts) -> float:
    """Count a token's products with the states of all layers: what is known of its key, what is
    learnt of it, and the answer to its query."""
    kinds = ((alike.count, alike.layer.attention) for alike in facts.layer_counts)
    return sum(
        6.0 * count * kind.net.value_heads * kind.net.key_dim * kind.net.value_dim
        for count, kind in kinds
        if isinstance(kind, StateAttention)
    )


def _times(flops: Flops, count: int) -> Flops:
    return tuple([(precision, each * count) for precision, each in flops])
