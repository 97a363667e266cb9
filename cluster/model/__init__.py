"""Value types: the observed state (Snapshot), the planned actions (Plan), and the names of both.

    names                 labels, annotations and object names that users see
    states                the enums that decisions are based on
    snapshot, stages      the cluster state at one moment
    stage_order           the stages of a Driver, with the one for its devices
    json_fields, parse, parse_claims, parse_pods, parse_stages    parsers of the API server's JSON
    labelmap, pci_labels  compact label sets; their labels about PCI devices
    lookup_cache          cached single-pass lookups
    waiting               why the containers of a pod do not start
    problems              what the controller met, which no plan can see
    retries               annotations of a Driver: forget failures, build anew
    coreos                versions of CoreOS, and the order of the toolkit tags named by them
    actions, lanes        the actions of a plan, and their dependencies
    pod_demand            the pods that a plan has to know, since Drivers evict them
    status_schema, limits the schema of a Driver's status, and trimming a status to fit it
    log_pattern           the log pattern a stage waits for (RE2)

Nothing here sends requests or makes decisions.
"""
