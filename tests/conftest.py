"""For all tests: properties are about results, not about how long a busy machine takes for an example."""

from hypothesis import settings

settings.register_profile("bitbench", deadline=None)
settings.load_profile("bitbench")
