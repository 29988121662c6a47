"""Keys and values of MLPs, and how alike they are in the two directions of a fact."""
