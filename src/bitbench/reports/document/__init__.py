"""The document: its blocks, and the renderers that write it down."""
