"""A real cluster on one machine: control plane, nodes with a kubelet, registry, network.

network.py     a bridge in a network namespace of its own, a cable for each node
content.py     the images as they ship: in a registry, and unpacked on a disk of each node
node.py        a node over its boots: switched on, rebooted, cut off, deleted
features.py    labels for devices, a stand-in for Node Feature Discovery
lab.py         all of it, and the controller in it
commands.py    what `lab node ...` asks of a running lab
holding.py     what the cluster and its nodes say where a wait meets its deadline
story.py       what is done to a driver in it, and seen; test_story.py and long_story.py tell it
devices.py     pods that ask for its devices
claims.py      pods with claims on them; test_dra.py and long_claims.py tell it
               (long_programs.py: a driver with hooks and a daemon;
               long_neighbours.py: a driver that comes after another one)
elsewhere.py   parts of it on a cluster of yours
__main__.py    `make lab`, `make lab-down`, `python -m tests.lab`
"""
