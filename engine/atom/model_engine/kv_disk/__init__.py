"""The tier of the KV cache on a disk, behind the tier in the host's memory."""
