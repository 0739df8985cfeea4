"""Reference pages of the documentation, each written from the code that it speaks of."""
