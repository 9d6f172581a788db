"""What commands import, in the server that forks them: see tests/forked.py."""

import importlib
import pkgutil

import bitbench.cli
import bitbench.planning.plan
import bitbench.reports.study

for module in pkgutil.iter_modules(bitbench.cli.__path__, "bitbench.cli."):
    importlib.import_module(module.name)
