"""The fields of requests, ours and other servers': what each does here, and the check of a body."""
