"""What compression costs in quality: a corpus in token windows, and what an endpoint says about them."""
