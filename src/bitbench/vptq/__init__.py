"""VPTQ, vector quantization with two codebooks: its public layout, and the one that our CPU kernel reads.

Needs numpy alone, so that a worker in an engine's environment can use it too.
"""
