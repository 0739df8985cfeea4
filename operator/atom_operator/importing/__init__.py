"""Deployments of other projects as AtomDeployments: read a file, translate its fields, render.

`documents` finds what a file holds, `sources` has a module for each kind, and `render` makes the
manifest. Every field of an input becomes a `Setting` of the spec or a `Finding` with its remedy.
Pure but for the reading of the file; `import_command` prints.
"""
