"""What happens to each node, by three tables: update, drain, unload.

table                 what a node in any situation gets
state                 where the rollout stands: phase, budget, canaries
decisions             the decision for each node, within the budget
casualties            nodes that a revision has cost
drain_table, drain    how a node is emptied before its driver changes
unload                how a driver leaves a node
context               all of it for one Driver, computed when it is asked for
"""
