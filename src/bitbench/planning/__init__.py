"""From a study file to cells, and from cells to the next thing to do."""
