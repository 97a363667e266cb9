"""The rollout logic: decides what happens to each node, using tables for update, drain and unload.

table                 the action for a node in any situation
state                 the state of the rollout: phase, budget, canaries
decisions             the decision for each node, within the budget
casualties            nodes that a revision has broken or taken down
drain_table, drain    draining a node before its driver changes
unload                unloading a driver from a node
"""
