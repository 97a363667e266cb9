"""Everything derived from a Driver and a snapshot, by subject; each value is computed once.

toolkits              the toolkit image of each pool
supply                image fallbacks, shared builds, and which pools can get modules
nodes                 the nodes of the Driver, and those that another Driver has
rollout               the rollout: its state, and the decision for each node
context               composes these
"""
