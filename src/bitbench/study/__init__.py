"""What a person asks for: the study file with its workloads, recipes and objectives, and the plan that follows."""
