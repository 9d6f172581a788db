"""Readers of other tools' result files, from text to runs. They read and write no files."""
