"""A page in the browser while a study runs."""

from bitbench.feature import Feature

FEATURE = Feature(name="watch", offers={"observers": {"watch": ".observer:watch_run"}})
