"""Files of the driver image on the host: one directory for each version, and `current`.

versions              a copy for each digest, whole or not at all; which one is current
tree                  what is copied: its digest, and what is refused
use                   whether a process or a mount still has a version

/var/lib/nodeside/userspace/<driver>/
  <digest>/opt/edu/…    what was /opt/edu in the driver image
  current               a link to the version that works, replaced by rename
"""
