"""Both ends of a worker that runs isolated in another environment: `job_process` starts it here,
`job_worker` runs there.
"""
