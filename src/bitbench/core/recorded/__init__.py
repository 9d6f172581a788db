"""What bitbench writes down while it measures, and where it measured."""
