"""HTTP that ends: one deadline for a whole exchange, bounded answers, causes in plain words.

    deadline              a `requests` adapter under which no exchange outlives its deadline
    bounded_response      no line and no single read of an answer is without a limit
    failures              the cause at the bottom of an exception; a URL that is safe to show

The stores and the client of the API server are built on it.
"""
