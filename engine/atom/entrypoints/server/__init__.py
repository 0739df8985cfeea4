"""The server as processes: one HTTP process with its engine, or several that share one."""
