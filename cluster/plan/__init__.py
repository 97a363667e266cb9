"""Pure: computes a Plan from a Snapshot and the time. Nothing here reads or writes the cluster.

planner               plans one Driver after the other
plan_driver           the order of everything for one Driver, with an `if` for each option
plan_cache            plans that still hold: whom a change concerns
context/              everything derived from one Driver and a snapshot
assign                node labels and cordons, one request per node
status_parts          what a status is made of
announce              Events about images and bundles that nodes cannot use, and about rivals
rivals                Drivers for the same modules or devices on the same nodes
leftovers             what no Driver cares for: traces of Drivers that are gone, ended cordons

The parts are in driver/, what every Driver needs, and options/, what a user switches on.
"""
