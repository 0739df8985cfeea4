"""How the pods of one revision replace those of another: which, how many at a time, until when."""
