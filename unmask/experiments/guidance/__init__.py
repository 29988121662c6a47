"""Texts steered to an attribute, by classifiers, labels and rejection, at equal passes."""
