"""`python -m cluster` is `nodeside-cluster`."""

from cluster.cli.main import main

main()
