"""Where inside a network a fact is recalled: causal tracing over layers, tokens and steps."""
