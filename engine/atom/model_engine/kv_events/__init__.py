"""KV events: what a router is told of the blocks that this engine has cached."""
