"""What everything stands on: errors, units, files, HTTP, processes. Imports nothing of ours but the port."""
