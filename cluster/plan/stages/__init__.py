"""The stages of a Driver, which follow the driver itself: their objects and gates.

stages                which stage may begin on which node
manifests             a stage's documents, checked and completed
changes               the objects to apply and to delete
labels                the node labels that admit a stage's pods
"""
