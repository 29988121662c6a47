"""The loop that trains any kind of model, from a recipe, resumable to the bit."""
