"""The cluster as the controller knows it: reflectors, joined into one Snapshot.

cache                 starts the reflectors and makes snapshots
stages, stage_logs, renderings    of stages, from the first Driver on that has some
consumers             pods that use a driver, while a Driver asks for them
image_streams, image_labels       toolkit tags, and the kernels they are for
node_changes          which changes of a node matter
"""
