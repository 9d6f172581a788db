"""The source of models with published shapes and random weights."""

from bitbench.feature import Feature

FEATURE = Feature(name="shapes", offers={"model_sources": {"shape": ".checkpoint:ShapeSource"}})
