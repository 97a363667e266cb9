"""Pure: computes a Plan from a Snapshot and the time. Nothing here reads or writes the cluster.

planner               plans one Driver after the other and orders the actions of a plan
assign                node labels and cordons, one request per node
options               what the options of a Driver add to its status
plan_cache            plans that still hold: whom a change concerns
deletion, build_jobs, stage_actions, announce      make actions
status/               the status of a Driver
stages/               the stages that follow a driver
context/              everything derived from one Driver and a snapshot
rollout/              per-node steps: update, drain, unload
builds/, nodes/       image and build Job selection; the state of each node
objects/              the documents that the controller creates
"""
