"""The state of each node with respect to a Driver.

hardware, os_version, pools   hardware selection, and the pool of a node
members, conflicts    a node's observations as one value; Drivers with modules in common
deadlines             timeouts for nodes that do not report
neighbours            drivers that come before and after a driver
drain_state           how far a node is drained, for budgets and turns
consumers, drain_labels, stage_pods   pods that use the driver, and drain labels on the node
memo                  per-node results cached between two snapshots
"""
