"""The API server, as the node side talks to it.

client     requests with a service account's token, with deadlines
nodes      a node's labels
"""
