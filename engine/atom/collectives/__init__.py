"""Communication between the devices of processes that compute one model together."""
