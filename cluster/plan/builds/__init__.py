"""Sources of modules: prebuilt image, toolkit image, build Job.

toolkit_image         the image stream tag for a node's OS version and kernel
toolkit_evidence      evidence from labels and nodes about toolkit images
kernel_images         driver images for one kernel, and the fallback to building
builds                builds that run once for a pool
preflight             test builds for kernels that no node runs yet
"""
