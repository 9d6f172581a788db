"""VPTQ, vector quantization with a main and a residual codebook: its public layout and the one that our CPU kernel reads.

Needs numpy alone, so that a worker in an engine's environment can use it too.
"""
