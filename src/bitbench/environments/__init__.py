"""Virtual environments in `<home>/envs/NAME`, made from what an engine or a stage says that it needs.

The description of one is `bitbench.core.environment.Environment`; nothing here knows an engine by name.
"""

from bitbench.environments.creation import create
from bitbench.environments.installed import InstalledEnvironment, list_environments, python_of, versions

__all__ = ["InstalledEnvironment", "create", "list_environments", "python_of", "versions"]
