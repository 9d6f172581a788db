"""What several tests share: made records, stand-in servers and engines, simulations."""
