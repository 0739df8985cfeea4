"""Objects of which only a part is decoded, because thousands of them are listed."""
