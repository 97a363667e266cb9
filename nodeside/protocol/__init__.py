"""What programs of different versions say to one another: node, sidecar, controller.

labels             keys of labels, names of objects
node_status        what a node says of a driver
pod_mentions       how it names a pod in a message
bundle_key         the key of a bundle
build_records      requests to the toolkit sidecar, and its answers
shared_directory   the tree that driver and sidecar share
build_job          the records of a build Job
records            JSON records: published by rename, read with suspicion
node_records       records of this boot in /run
ready_file         <driver>/ready
module_names       the kernel's name of a module, and the name of its file
timestamps         RFC 3339

No network and no process: only values and files.
"""
