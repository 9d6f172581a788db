"""One folder per feature: its types, computing, words and command, plugged in through `bitbench.feature`."""
