"""The columns of `kubectl get`, and what tests say of a condition that is absent."""

SHOWN_COLUMNS = ("READY", "REPLICAS", "REASON", "MODEL", "KV-TOKENS", "MAX-SEQS", "AGE")
# Of a feature that the spec does not ask for.
ABSENT = {"status": "Absent", "reason": "Absent", "message": ""}
