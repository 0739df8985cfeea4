"""Processes of a group on machines that serve nothing: started there, led by the first machine."""
