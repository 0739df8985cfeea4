"""The kinds of input, each a module with the rules of its fields."""
