"""VPTQ, vector quantization with two codebooks: its public layout, a quantizer, and our CPU kernel's layout.

Needs numpy alone, so that a worker in an engine's environment can use it too; `linear` and `hugging_face`, which need
torch and transformers, are imported nowhere else.
"""
