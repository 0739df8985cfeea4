"""The memory that stored responses may take by default (--responses-store-mib).

Light to import: the command line and the operator read the number without a server.
"""

DEFAULT_BYTES = 64 * 2**20
