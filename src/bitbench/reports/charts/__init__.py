"""Figures: Vega-Lite specifications in one style."""
