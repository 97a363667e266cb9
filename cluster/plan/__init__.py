"""Pure: from a Snapshot and the time to a Plan. Nothing here asks or writes.

planner               one Driver after the other; the order of a plan's actions
settle                labels and cordons, until a second look would change nothing
unchanged             Drivers whose plan is that of the look before
deletion, build_jobs, stage_actions, announce      make actions
status/               what a Driver's status says
stages/               what follows a driver
rollout/              what happens to each node: update, drain, unload
builds/, nodes/       which image and Job; how each node stands
objects/              the documents we create
"""
