"""One folder per feature: its types, computing, words and command.

`bitbench.feature` plugs them in.
"""
