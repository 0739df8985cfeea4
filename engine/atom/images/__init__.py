"""Images of requests: fetched, decoded, and processed into the pixels that a vision encoder reads.

The package has numpy and Pillow, and never torch: encoders are models. It knows no HTTP request
and no engine. `item.py` has the values that the rest of the program shares.
"""
