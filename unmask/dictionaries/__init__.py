"""What single directions of a network's states stand for: states by site, features, lenses."""
