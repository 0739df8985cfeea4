"""KV events: reports to routers of the blocks that this engine has cached."""
