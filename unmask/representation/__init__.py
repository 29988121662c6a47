"""Keys and values: what an MLP looks up, what it answers, and whether directions mirror each other."""
