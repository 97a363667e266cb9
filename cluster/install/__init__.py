"""Installation: the objects of nodeside in a cluster, applying and deleting them.

crds, manifests       the definitions from the schema, and all other objects from deploy/
install, uninstall    applying and deleting them
crd_check             check for outdated definitions in a cluster
device_classes        what pods need to ask for devices that are exposed by DRA
pull_specs            the parts of a pull spec; the image of the device agent
helm, kustomize       the same objects as files for other tools, with the options set
directory             writing such files

deploy and charts are links to the directories at the top of the repository. A wheel and the
controller's image have the files in their place.
"""
