"""`python -m cluster` is `nodeside-cluster`."""

from cluster.cli import main

main()
