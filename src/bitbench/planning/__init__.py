"""Study + machine → plan: what runs, what is refused, what is missing, and how long it takes."""
