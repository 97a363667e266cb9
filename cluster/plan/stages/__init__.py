"""What follows a driver: the stages of a Driver, their objects and gates.

stages                which stage may begin on which node
manifests             a stage's documents, checked and framed
labels                the node labels that let a stage's pods on
"""
