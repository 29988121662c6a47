"""Keys and values: what an MLP looks up, what it answers, and how directions mirror it."""
