"""Circuits of facts by denoising step: nodes, edges, neurons, and how far estimates find them."""
