"""The files of a run: record types, request rows, and the study folder that contains them."""
