"""From plan and observation to one status; pure."""
