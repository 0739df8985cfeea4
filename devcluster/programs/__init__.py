"""Other projects' programs and definitions, pinned: built or fetched once, kept in the cache."""
