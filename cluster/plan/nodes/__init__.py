"""How each node stands for a Driver.

hardware, os_version, pools   whether it has the hardware, and which pool it is in
members, conflicts    its observations in one value; Drivers that want the same modules
deadlines             since when something is overdue
consumers, drain_labels, stage_pods   who uses the driver there, and how it is held
memo                  results kept from one look to the next
"""
