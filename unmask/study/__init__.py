"""The study: how a model recalls facts forwards and backwards, from data to a page."""
