"""The engine's options, each declared once: a field of a part, with its text, range and flag.

`option` has the form of a declaration; each other module has the parts of one subject. The engine's
command line, its configuration and its checks, and the operator's CRD fields, defaults and
container arguments are derived from these declarations. Standard library only.
"""
