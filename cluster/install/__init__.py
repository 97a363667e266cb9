"""Installation: the objects of nodeside in a cluster, applying and deleting them.

crds, manifests       the definitions, and all other objects from templates/
install, uninstall    applying and deleting them
crd_check             check for outdated definitions in a cluster
device_classes        what pods need to ask for devices that are exposed by DRA
pull_specs            the parts of a pull spec; the image of the device agent
helm, helm_templates, kustomize, directory    the same objects as files for other tools
"""
