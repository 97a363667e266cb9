"""Unloading a driver from nodes: those that a Driver no longer selects, or all if it is deleted.

nodes                 the unload phase of each node, by a table
pod                   a pod that unloads a driver on one node
deletion              what is removed, in which order
status                what the status says of it
"""
