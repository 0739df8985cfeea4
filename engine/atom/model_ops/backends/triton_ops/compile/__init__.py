"""Kernels ahead of a start, and the configuration that each runs with.

- `warmup.py`: the warm-up compile. A start's steps run once with launches that start nothing;
  each specialisation of a kernel (signature and constants) that is met goes to compilers.
- `compiler_pool.py`, `compiler_process.py`: forks of the engine's process that compile into
  Triton's cache on disk side by side, or threads where processes fail.
- `tuning.py`: tables of tiles by card, shape and number of tokens, `tuned/<device>.json` and what
  `python -m atom.model_ops.backends.triton_ops.tune` measured on this machine; else safe
  defaults.

A specialisation travels as Triton's own JSON, so constants of kernels are numbers, strings, None,
or tuples of such wrapped in tl.constexpr; a plain tuple, list or dataclass would come back as
another key in Triton 3.6, and its kernel would be compiled twice. What a kernel can compute from
its other constants (lanes of a head, padding) is no parameter: fewer specialisations are then
possible at all.

What bounds it. Triton's front end, which is Python; a start has about sixty specialisations.
Measured on an H200 and why processes and no threads:
docs/adr/0042-kernels-compiled-in-processes.md.
"""
