"""The stages of a Driver, which follow the driver itself: their objects and gates.

stages                which stage may begin on which node
manifests             a stage's documents, checked and completed
labels                the node labels that admit a stage's pods
"""
