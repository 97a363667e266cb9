"""The alerts of examples/monitoring, in Debian's promtool and Prometheus."""
