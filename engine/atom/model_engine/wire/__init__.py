"""What clients and engine cores say to each other: messages, sockets, processes, heartbeats."""
