"""How much memory stored responses take unless --responses-store-mib says otherwise.

Light to import: the command line and the operator read the number without a server.
"""

DEFAULT_BYTES = 64 * 2**20
