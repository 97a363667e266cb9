"""What a user switches on: a file or a room for each option. Pure.

after                 drivers that come before and after a driver: `spec.after`
build_once/           a Job that builds for all nodes of a pool: a source with `publish`
conflicts             Drivers that have a module in common
devices/              what offers a driver's devices to the kubelets: `spec.devices`
drain/                pods leave a node before its driver changes: `rollout.evict`
kernel_images         driver images for one kernel each: `prebuilt.image`
preflight             test builds for kernels that no node runs yet: `spec.preflight`
stages/               what follows a driver: `spec.stages`
unload/               nodes that a Driver leaves, and Drivers that are deleted

No option knows another: what they say to one another are values of a plan (plan/plan_driver.py).
There are two exceptions: a preflight is a build of build_once/, and devices/ makes the objects of a
stage. What an option watches or sends is in cache/ and reconcile/, in files with its name.
"""
