"""Files of requests, one per line: read, answered by the routes of this process, and written."""
