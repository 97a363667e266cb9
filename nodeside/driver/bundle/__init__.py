"""Bundles: the modules of a driver and a manifest, built for one kernel under one key.

    manifest              the manifest: format, parsing, checks
    bundle                a bundle in a directory: write, verify, read
    archive               a bundle as a tar.gz, read as untrusted input
    trust                 whether a manifest can be trusted
    cache, retention      the node's bundle cache, and which bundles to keep

Touches only the cache and the directories passed in.
"""
