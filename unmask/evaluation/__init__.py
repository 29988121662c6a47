"""What a model knows and how well it writes, measured: recall, likelihood, perplexity."""
