"""What runs in the server's process: text to tokens and back, and the streams of open requests."""
