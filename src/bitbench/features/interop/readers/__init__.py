"""Other tools' result files as records: one reader per tool, pure, from text to runs."""
