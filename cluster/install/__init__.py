"""What is installed in a cluster, and how it is taken out.

crds, manifests       definitions, and all the rest from templates/
install, uninstall    apply and delete them
crd_check             whether a cluster's definitions are ours
helm, helm_templates, kustomize, directory    the same as files for other tools
"""
