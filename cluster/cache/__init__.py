"""The cached cluster state: reflectors, joined into one Snapshot.

cache                 starts the reflectors and makes snapshots
stages, stage_logs, renderings    the state of stages, once a Driver has some
secrets               the Secrets that templates of stages name
drain_pods            pods that use a driver, while nodes are drained of them
image_streams, image_labels       toolkit tags and their kernels
node_filter           decides which node changes wake the controller
"""
