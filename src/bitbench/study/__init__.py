"""The study file with its workloads, recipes and objectives, and the plan made from it."""
