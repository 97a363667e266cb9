"""`python -m cluster` is `nodeside-cluster`."""

from cluster.climain import main

main()
