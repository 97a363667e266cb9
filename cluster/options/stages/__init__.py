"""The stages of a Driver, which follow the driver itself: their objects and gates.

inputs                what stages depend on, from the rest of a plan
stage_plan            which stage may begin on which node
stage_state           the desired and actual state of one stage
manifests             a stage's documents, checked and completed
changes               the objects to apply and to delete
job_manifests         what a Job of a stage may say
job_runs              whether each Job has run, and where
job_changes           the Jobs to create and to delete
pods                  pods of stages on a node
labels                the node labels that admit a stage's pods
actions, status       what is sent, and what the status says
"""
