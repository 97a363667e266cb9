"""The target of a trial: what a user names on the command line, as a driver.yaml and a source tree.

target          a directory, a driver.yaml or the name of a package
side_file       what a vendor's trial.yaml adds to a trial
dkms_tree       a driver.yaml for a bare dkms tree
draft           what is known of any source that has no driver.yaml
own_driver      what a driver.yaml that is there already says of its build
plan            what of such a source to build
candidates      its directories in which kbuild or dkms may build the driver
ways            the ways to build it
hardware        the PCI ids that modules declare
dependencies    the package's dependencies that the toolkit lacks
"""
