"""HTTP with limits: a deadline per exchange, bounded responses, readable failure causes.

    deadline              a `requests` adapter that enforces one deadline for a whole exchange
    bounded_response      limits every line and every single read of a response
    failures              the root cause of an exception; URLs that are safe to show
    status                what a refusal means: the API server's `Status`, Retry-After
    server                a small server for health checks and metrics

The stores and the API server client are built on it.
"""
