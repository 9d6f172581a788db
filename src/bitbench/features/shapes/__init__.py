"""Models without their weights: a published shape, filled with random numbers."""

from bitbench.feature import Feature

FEATURE = Feature(name="shapes", offers={"model_sources": {"shape": ".checkpoint:ShapeSource"}})
