"""A process that loads its libraries once, and forks a child for each piece of hostile input.

`owner.py` is the side of the program that asks, `process.py` that of the process.
"""
