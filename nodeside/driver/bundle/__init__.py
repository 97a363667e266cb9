"""The bundle: modules, firmware and a manifest, built for one kernel under one key.

    manifest              what a bundle says of itself
    bundle                a bundle in a directory: made, verified, read
    archive               a bundle as a hostile tar.gz
    trust                 whether what a manifest says may be believed
    cache, retention      the node's bundles, and which of them to keep

Touches the cache and directories that it is given.
"""
