"""What everything stands on: errors, units, files, clocks. Imports nothing of ours."""
