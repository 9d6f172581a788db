"""From a study to its records: plan, schedule, loop, group, trial."""
