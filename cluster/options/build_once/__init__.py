"""Builds that run once for all nodes of a pool.

builds                which are desired, and the state of each
symbols               what a build needs of the builds of other drivers
job_manifest          the Job
jobs                  creates Jobs, records their outcomes, deletes them
"""
