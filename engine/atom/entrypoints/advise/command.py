"""The command: flags to a question, the answer to an output and an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from atom.advisor.advice import Detail, advise, one_fewer
from atom.advisor.errors import AdviceError
from atom.advisor.learned import learned_of
from atom.advisor.load import Demand, parse_load
from atom.advisor.manifest import manifest
from atom.advisor.question import Lost, ModelForm, Question
from atom.advisor.rates import Tables
from atom.advisor.rows import Advice
from atom.advisor.simulation import Due
from atom.advisor.slo import parse_slo
from atom.advisor.traces import TraceDemand, TraceEntry
from atom.entrypoints.advise.model_configs import (
    HubConfig,
    config_of,
    is_of_hub,
    label_of,
    source_of,
)
from atom.entrypoints.advise.report import as_document, html_page, lines
from atom.entrypoints.advise.right_size import Beside, read_measured
from atom.entrypoints.advise.running_server import load_of_metrics
from atom.entrypoints.advise.stages_shown import StagesShown
from atom.entrypoints.advise.variants import pictures_of, variants_of
from atom.entrypoints.bench.charts.chart import Series
from atom.entrypoints.bench.traces.timed_trace import TraceUnits, read_timed_trace
from atom.entrypoints.bench.traces.traced_request import TracedRequest
from atom.entrypoints.bench.traces.weka_trace import read_weka_trace
from atom.sizing.cards import CARDS, Card
from atom.sizing.engine_support import unsupported
from atom.sizing.errors import SizingError
from atom.sizing.model_facts import ModelFacts
from atom.sizing.quantization.online import online_scheme

NOTHING_MEETS = 3
_ONLINE = {"auto": (None, "fp8"), "none": (None,), "fp8": ("fp8",), "mxfp4": ("mxfp4",)}
_DETAILS = {"yaml": Detail.CHOICE, "html": Detail.CURVES}


def run(
    args: argparse.Namespace,
    hub_config: HubConfig,
    running: Sequence[Mapping[str, Any]] = (),
) -> int:
    """Print the answer; return 0, or 3 if nothing meets the targets. running: AtomDeployments of a
    cluster. Raises AtomError for a question that cannot be answered."""
    tables = Tables.packaged(*([Path(args.rates)] if args.rates else []))
    known, unknown = _cards(args.cards, tables)
    load = _load(args)
    question = Question(
        models=tuple(form for name in args.model for form in _forms(name, args.quant, hub_config)),
        slo=parse_slo(args.slo),
        load=load,
        cards=tuple(known),
        tables=tables,
        max_devices=args.max_devices,
        prices=_prices(args.prices) if args.prices else {},
        variants=variants_of(args, load, hub_config),
        pictures=pictures_of(args.images),
        learned=learned_of([*running, *(_objects(args.learned) if args.learned else ())]),
    )
    measured = _measured(args)
    shown = StagesShown(sys.stderr)
    advice = advise(question, shown.show, _DETAILS.get(args.output, Detail.GOODPUT))
    advice = replace(advice, lost=(*unknown, *advice.lost))
    beside = _beside(args, question, advice, shown)
    _show(args.output, question, advice, replace(beside, measured=measured))
    if advice.chosen is None:
        _tell_nearest(question, advice)
        return NOTHING_MEETS
    return 0


def _show(output: str, question: Question, advice: Advice, beside: Beside) -> None:
    if output == "yaml":
        if advice.chosen is not None:
            document = manifest(advice.chosen)
            print(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), end="")
    elif output == "html":
        print(html_page(question, advice, beside), end="")
    elif output == "json":
        print(as_document(question, advice, beside))
    else:
        for line in lines(question, advice, beside):
            print(line)


def _measured(args: argparse.Namespace) -> Series | None:
    if args.measured is None:
        return None
    if args.output != "html":
        raise AdviceError(f"--measured {args.measured}: is drawn on a page; add -o html")
    return read_measured(args.measured)


def _beside(
    args: argparse.Namespace, question: Question, advice: Advice, shown: StagesShown
) -> Beside:
    """Predict the load on one device fewer than the chosen row has, for a page or if it was
    asked."""
    chosen = advice.chosen
    if chosen is None or not (args.one_fewer or args.output == "html"):
        return Beside()
    detail = _DETAILS.get(args.output, Detail.GOODPUT)
    return Beside(one_fewer(question, chosen, detail, shown.show), asks_fewer=True)


def _tell_nearest(question: Question, advice: Advice) -> None:
    if advice.nearest is None:
        remedy = "see the reasons above" if advice.lost else "name other cards"
        print(f"error: no form can serve this load; {remedy}", file=sys.stderr)
        return
    row = advice.nearest
    missed = ", ".join(map(str, row.misses))
    print(
        f"error: nothing meets {question.slo}; the nearest is {row.label} ({row.devices} devices), "
        f"which misses {missed}; allow more devices (--max-devices), other cards, or later tokens",
        file=sys.stderr,
    )


def _cards(text: str, tables: Tables) -> tuple[list[Card], list[Lost]]:
    """Return the known cards, and a loss for each other name. Raises AdviceError if none is
    known."""
    known, unknown = [], []
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    all_names = ", ".join([*CARDS, *(name for name in tables.by_card if name not in CARDS)])
    for name in names:
        card = tables.card(name)
        if card is None:
            unknown.append(Lost(name, f"is no known card; known: {all_names}"))
        else:
            known.append(card)
    if not known:
        raise AdviceError(f"--cards {text}: no card of that name is known; known: {all_names}")
    return known, unknown


def _prices(path: str) -> dict[str, float]:
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise AdviceError(f"--prices {path}: cannot be read as YAML or JSON: {error}") from error
    if not isinstance(found, dict):
        raise AdviceError(f"--prices {path}: must be an object such as {{MI300X: 2.5}}")
    for name, price in found.items():
        is_number = isinstance(price, int | float) and not isinstance(price, bool)
        if not isinstance(name, str) or not is_number or not 0 <= price < float("inf"):
            raise AdviceError(
                f"--prices {path}: {name}: {price!r} is no price; give a number from 0, of one "
                "device and hour"
            )
    return {name: float(price) for name, price in found.items()}


def _objects(path: str) -> list[Mapping[str, Any]]:
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise AdviceError(f"--learned {path}: cannot be read as YAML or JSON: {error}") from error
    objects = found.get("items", [found]) if isinstance(found, dict) else found
    if not isinstance(objects, list) or not all(isinstance(each, dict) for each in objects):
        raise AdviceError(
            f"--learned {path}: must hold AtomDeployments; write it by kubectl get "
            "atomdeployments -A -o json"
        )
    return objects


def _load(args: argparse.Namespace) -> Demand:
    if args.load is not None:
        return parse_load(args.load)
    if args.from_metrics is not None:
        return load_of_metrics(args.from_metrics, args.metrics_seconds)
    path = Path(args.trace)
    second = args.timed_trace_sec_multiplier
    if not second > 0:
        raise AdviceError(f"--timed-trace-sec-multiplier {second}: must be above 0")
    if path.is_dir() or path.suffix == ".json":
        return TraceDemand([_entry(each) for each in read_weka_trace(path, second, None)])
    units = TraceUnits(args.timed_trace_chunk_hash_size, second)
    return TraceDemand([_entry(each) for each in read_timed_trace(path, units, None)])


def _entry(request: TracedRequest) -> TraceEntry:
    departure = request.departure
    return TraceEntry(
        Due(departure.at_seconds, departure.after, departure.delay_seconds),
        request.input_tokens,
        request.output_tokens,
        tuple([(request.scope, number) for number in request.hash_ids]),
        request.block_tokens,
    )


def _forms(name: str, quant: str, hub_config: HubConfig) -> Iterator[ModelForm]:
    """Yield a model in each format that is asked for. A checkpoint that is quantised already stays
    as it is."""
    config, label = config_of("--model", name, hub_config), label_of(name)
    try:
        facts = ModelFacts.from_hf_config(config)
    except SizingError as error:
        raise AdviceError(f"--model {name}: {error}") from error
    refusals = "; ".join(refusal.message for refusal in unsupported(facts))
    if refusals:
        raise AdviceError(f"--model {name}: {refusals}")
    if facts.is_fallback:
        raise AdviceError(
            f"--model {name}: {facts.architecture} has no family here, and step times of "
            "transformers' classes are not predicted; measure a server, or name another model"
        )
    source = source_of(name)
    stated: Mapping[str, Any] = {} if is_of_hub(name) else config
    if facts.quantization is not None:
        if quant not in ("auto", "none"):
            raise AdviceError(
                f"--quant {quant}: {name} is quantised already ({facts.quantization.method}); "
                "leave the option out, or name the plain checkpoint"
            )
        yield ModelForm(label=label, source=source, facts=facts, config=stated)
        return
    for method in _ONLINE[quant]:
        if method is None:
            yield ModelForm(label=label, source=source, facts=facts, config=stated)
        else:
            yield _quantised(label, source, facts, (method, stated))


def _quantised(
    label: str, source: str, facts: ModelFacts, stored: tuple[str, Mapping[str, Any]]
) -> ModelForm:
    method, config = stored
    try:
        quantised = facts.stored_as(online_scheme(method))
    except SizingError as error:
        raise AdviceError(f"--quant {method}: {error}") from error
    return ModelForm(
        label=f"{label} {method}",
        source=source,
        facts=quantised,
        quantization=method,
        plain=facts,
        config=config,
    )
