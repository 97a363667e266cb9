"""`nodeside-cluster run`: leader election, the reconcile loop, probes and metrics.

manager               wiring and shutdown
probes                /healthz and /readyz
metrics, metrics_server, metrics_auth, tls    Prometheus metrics over HTTPS
"""
