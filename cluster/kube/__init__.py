"""The Kubernetes client: requests, watches, leader election. It knows nothing about drivers.

resources, listing    the kinds in use; parsing of list pages
nesting               decoding of JSON that nests deeply
credentials           the API server's address and our credentials
transport, client     a single request with its retries; the API verbs
errors                API server errors as exceptions
reflector             lists and watches one kind
wakeup                a signal between threads: something changed
election              leader election with a Lease
managed_fields        field ownership: which fields of an object are ours
quantity              amounts such as 100m and 1024Mi
comparison            whether an object still matches what was applied
merge_patch           the merge patch between two documents, and a document after one
conditions            condition lookup
timestamps, server_time   timestamps written by others; the API server's clock
"""
