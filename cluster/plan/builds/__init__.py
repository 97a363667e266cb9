"""Where modules come from: prebuilt image, toolkit image, build Job.

toolkit_image         the image stream tag for a node's OS version and kernel
toolkit_evidence      what nodes have shown about toolkit images
kernel_images         driver images for one kernel, and the fall back to building
builds                builds that are made once for a pool
preflight             answers for kernels that no node runs yet
"""
