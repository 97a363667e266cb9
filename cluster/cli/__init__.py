"""The commands that people type.

main                  the verbs, imported when they are called
options               flags in common; what a refusal needs to go away
status, explain       how Drivers stand; why a node is as it is
resolve               which toolkit image a node gets
preflight, trial_build    whether a driver builds for a kernel no node runs yet
leader_status         who leads
extra                 packages that are missing
"""
