"""Sources of modules: prebuilt image, toolkit image, build Job.

toolkit_image         the image stream tag for a node's OS version and kernel
toolkit_evidence      evidence from labels and nodes about toolkit images
kernel_images         driver images for one kernel, and the fallback to building
builds                builds that run once for a pool
symbols               what a build needs of the builds of other drivers
preflight             test builds for kernels that no node runs yet
"""
