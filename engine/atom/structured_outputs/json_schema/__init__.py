"""Convert JSON schemas to grammars of the answers that fit them.

A schema is read exactly, its references are followed, its keywords are expanded into cases, cases
without a value are dropped, and the rest is written as a grammar. Each keyword is enforced or
refused by name; none is ignored. Pure; raises ValueError with the reason.
"""

from __future__ import annotations

from typing import Any

from atom.structured_outputs import exact_json
from atom.structured_outputs.grammar_writer import GrammarWriter
from atom.structured_outputs.json_schema.cases import Conjunction, Place
from atom.structured_outputs.json_schema.expansion import Expansion
from atom.structured_outputs.json_schema.first_look import look_at
from atom.structured_outputs.json_schema.inhabitation import Inhabitation
from atom.structured_outputs.json_schema.keywords import KEPT, SchemaError, place
from atom.structured_outputs.json_schema.references import SchemaDocument
from atom.structured_outputs.json_schema.schema_grammar import SchemaGrammar
from atom.structured_outputs.json_schema.spacing import LOOSE, ONE_LINE

__all__ = ["check_schema", "schema_to_grammar"]


def schema_to_grammar(
    text: str, *, one_line: bool = False, at: tuple[str, ...] = (), bare: bool = False
) -> str:
    """Return the grammar (EBNF, root rule `root`) of a schema given as JSON text. at: the place in
    the schema whose values the grammar describes; bare: a value that is a string is written without
    quotes and escapes.

    Raises ValueError with the keyword that is not enforced, its place, and the alternative.
    """
    schema = _read(text)
    root = (Place(at),)
    try:
        expansion = Expansion(SchemaDocument(schema))
        inhabitation = Inhabitation(expansion, root)
        if root not in inhabitation.inhabited:
            raise _nothing_fits(inhabitation, root)
        writer = GrammarWriter()
        grammar = SchemaGrammar(inhabitation, ONE_LINE if one_line else LOOSE, writer)
        return writer.text(grammar.bare_value(root) if bare else grammar.value(root))
    except RecursionError:
        raise SchemaError(
            "the JSON schema leads through too many references in a row; flatten it"
        ) from None


def check_schema(text: str) -> None:
    """Take a first look at a schema given as JSON text, in little time. Raises ValueError as
    `schema_to_grammar` does, but not for everything that it does."""
    look_at(_read(text))


def _read(text: str) -> Any:
    schema = exact_json.read(text)
    if not isinstance(schema, (dict, bool)):
        raise SchemaError("the JSON schema at $ must be an object, true or false")
    return schema


def _nothing_fits(inhabitation: Inhabitation, root: Conjunction) -> SchemaError:
    """Return the error that names the deepest place without a value, and its keywords."""
    expansion = inhabitation.expansion
    path = expansion.place_of(inhabitation.emptiest(root))
    schema = expansion.document.at(path)
    said = [keyword for keyword in schema if keyword in KEPT] if isinstance(schema, dict) else []
    return SchemaError(
        f"the JSON schema's {', '.join(said) or 'false'} at {place(path)} leaves no value that "
        f"fits: it contradicts itself or what is asked elsewhere, or recurs without an end; mend it"
    )
