"""Draining a node before its driver changes.

labels                the labels that hold a node
pods                  which pods use a driver
table                 the step for a node in any situation
drain                 the decisions after draining, and the requests
status                what the status says of it
"""
