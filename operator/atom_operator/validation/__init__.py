"""From a raw spec to accepted, fully resolved options; pure."""
