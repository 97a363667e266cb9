"""Values: what the controller sees (Snapshot), what it wants done (Plan), and the names of both.

    names                 labels, annotations and object names that users see
    states                the words that decisions are made of
    snapshot, stages      the cluster as it was seen at one moment
    fields, parse, parse_pods, parse_stages    the API server's JSON as these values
    labelmap, index       label sets in little memory; look-ups in one pass
    actions, lanes        what a plan wants done, and what rests on what
    annotations           what is remembered in annotations
    status_schema, limits the schema of a Driver's status, and how a status is fitted to it
    log_pattern           what a stage waits for in a log (RE2)

Nothing here asks, writes or decides.
"""
