"""Requests on a schedule, over HTTP and server-sent events, with the time of everything that came back.

`workers.LoadWorkers` runs a job in processes of its own; `client.run_client_part` is what runs in there;
`verdict.load_verdict` says whether a trial counts.
"""
