"""A language of 57 sentences, small enough to compare whole laws, under every process."""
