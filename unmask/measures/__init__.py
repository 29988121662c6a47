"""Measures: everything that can be asked of models, one file each; see `measure.Measure`."""
