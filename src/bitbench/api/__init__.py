"""The functions behind `import bitbench`, which do from Python what the commands do."""
