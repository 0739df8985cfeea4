"""What a program does as a process: logs, signals, limits and its last message."""
