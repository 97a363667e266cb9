"""The machine: processes, files, clocks, sysfs. It knows no driver.

process            start, await and end programs
child              a function in a forked child, with a deadline
regex_search       a search that a hostile pattern cannot hold up
files              files that appear by rename; reads that expect anything
file_lock          a lock that ends with its process
owned_directory    a directory of a user, as root uses it
selinux            labels of files that others read
scratch            directories that go when their process is gone
directory_watch    changes in a directory, as the kernel signals them (dnotify)
sysfs, pci         devices and their drivers
uevents            the kernel's announcements of devices (pyudev)
host               paths of the node; the kernel that runs, its boot
digests            digests of files
clock              monotonic time that tests replace; backoff
"""
