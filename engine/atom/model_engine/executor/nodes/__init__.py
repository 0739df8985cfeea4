"""Processes of a group on machines that serve no requests: started there, led by the first
machine."""
