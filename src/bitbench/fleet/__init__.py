"""Where blocks run beside this process: how a machine is reached, and what is said on the way."""
