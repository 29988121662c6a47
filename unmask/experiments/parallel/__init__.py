"""What committing several tokens at once costs."""
