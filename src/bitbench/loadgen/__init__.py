"""The load client: requests on a schedule over HTTP and server-sent events, with exact times.

`workers.LoadWorkers` runs a job in several processes. In each of them runs
`client.run_client_part`. `verdict.load_verdict` decides whether a trial counts.
"""
