"""Makes variants: recipes, the text they are calibrated on, and the backends that run them."""
