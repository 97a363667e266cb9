"""The Kubernetes client: requests, watches, leader election. Knows nothing of drivers.

resources, listing    the kinds we use, and pages of lists
credentials           where the API server is, and who we are there
transport, client     one request with its repetitions; the verbs
errors                refusals of the API server as exceptions
reflector             a kind, listed and watched
election              one leader, by a Lease
managed_fields        which fields of an object are ours
comparison            whether an object still is as it was applied
conditions            look-up of a condition
timestamps, server_time   times that others wrote; the API server's clock
"""
