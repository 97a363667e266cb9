"""What every Driver needs: from a node's labels to the DaemonSets and the status. Pure.

In the order in which a plan needs them:

hardware, pools       which nodes have the hardware, and in which pool each is
other_installers      other software on a node that does what a Driver is for
deadlines             how long a silent node is waited for
drain_state           what budgets must know of a drain; IDLE without one
nodes                 a node of a Driver as one value, also kept between two snapshots
traces                what a Driver leaves on a node
toolkit_image         the toolkit image of a pool, and what labels say about images
revisions             the immutable driver.yaml of each revision, what nodes can be assigned to,
                      and the policy, which needs no revision
pod_policy            what an administrator asks of all pods: labels, priority, resources
pod, daemonset        the documents that nodes run
casualties            nodes that a revision has broken or taken down
rollout_state         phase, budget, canaries
update_table, update  the action for a node in any situation; which nodes change now
status/, events       the status of a Driver, and its Events

Nothing here knows an option: what options say comes as plain values, empty without them.
"""
