"""How a text is drawn from a model."""
