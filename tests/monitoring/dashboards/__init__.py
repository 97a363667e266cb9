"""The dashboards of examples/monitoring: one model, and JSON of two kinds.

`python -m tests.monitoring.dashboards` writes the files.

    model.py    what a dashboard is, and what a panel may be
    fleet.py    what is asked about all nodes, and how the answers are shown
    node.py     the same about one node
    panels.py   what these two share
    grafana.py  JSON for Grafana
    console.py  JSON for OpenShift's console
    files.py    what is to be in which file
"""
