"""What a run writes down: record types, request rows, and the study folder that holds them."""
