"""Compile kernels ahead of a start, and select the configuration of each.

- `warmup.py`: the warm-up compile. A start's steps run once with launches that run no kernel;
  compilers get each specialisation of a kernel (signature and constants) that occurs.
- `compiler_pool.py`, `compiler_process.py`: forks of the engine's process that compile into
  Triton's cache on disk concurrently, or threads if processes fail.
- `tuning.py`: tables of tiles by card, shape and number of tokens: `tuned/<device>.json` of the
  package atom_nvidia, and the measurements of `python -m atom.model_ops.backends.triton_ops.tune`
  on this machine; else safe defaults.

A specialisation travels as Triton's own JSON, so constants of kernels are numbers, strings, None,
or tuples of such wrapped in tl.constexpr; a plain tuple, list or dataclass would come back as
another key in Triton 3.6, and its kernel would be compiled twice. A value that a kernel can compute
from its other constants (lanes of a head, padding) is not a parameter: this reduces the possible
specialisations.

What bounds it. Triton's front end, which is Python; a start has about sixty specialisations.
Measurements on an H200, and the reasons for processes instead of threads:
docs/adr/0042-kernels-compiled-in-processes.md.
"""
