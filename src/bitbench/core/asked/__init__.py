"""What a person writes: a study, its workloads, recipes and objectives."""
