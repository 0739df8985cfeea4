"""The catalogue's models by hand: what one device holds, the arithmetic written out.

Every number in an expression is one of the model's config.json, so that a wrong formula and a wrong
catalogue both show. Nothing here calls the code that it is compared with.
"""
