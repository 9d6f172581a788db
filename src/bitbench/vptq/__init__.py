"""VPTQ, vector quantization with two codebooks: its public layout, a quantizer, our CPU kernel's layout, a GPU kernel.

Needs numpy alone, so that a worker in an engine's environment can use it too; `linear`, `hugging_face` and `triton_…`,
which need torch, transformers and triton, are imported nowhere else.
"""
