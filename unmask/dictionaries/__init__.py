"""States streamed from sites, dictionaries of their features, what features do, and steering."""
