"""What a command does, callable from Python: the functions behind `import bitbench`."""
