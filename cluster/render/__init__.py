"""Stages' templates, rendered in a process with limits.

    templates             a ConfigMap's files as Kubernetes documents
    worker                the process
    renderer              starts it, and names the template that ended it

A template is somebody else's program: it cannot stop, fill or crash the controller.
"""
