"""The target of a trial: what a user names on the command line, as a driver.yaml and a source tree.

target          a directory, a driver.yaml or the name of a package
side_file       what a vendor's trial.yaml adds to a trial
dkms_tree       a driver.yaml for a bare dkms tree
draft           what is known of any source that has no driver.yaml
candidates      the directories of such a source in which kbuild may build the driver
dependencies    the package's dependencies that the toolkit lacks
"""
