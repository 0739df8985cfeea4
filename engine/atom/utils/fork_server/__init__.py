"""A process that loads what hostile input needs once, and forks a process for each piece of it.

`owner.py` is the side of the program that asks, `process.py` that of the process.
"""
