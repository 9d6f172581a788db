"""Both ends of a worker that runs isolated in another environment: `job_process` here, the others there."""
