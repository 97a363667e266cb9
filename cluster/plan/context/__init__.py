"""Everything derived from a Driver and a snapshot, by subject; each value is computed once.

toolkits              the toolkit image of each pool
supply                shared builds, which pools can get modules, and nodes that build instead
nodes                 the nodes of the Driver, and those that another Driver has
rollout               the rollout: its state, and the decision for each node
context               composes these
"""
