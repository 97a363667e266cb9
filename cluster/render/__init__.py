"""Renders the templates of stages in a process with resource limits.

    templates             renders a ConfigMap's files to Kubernetes documents
    worker                the rendering process
    renderer              starts the worker and reports the template that ended it

A template is an untrusted program: it cannot stop, fill or crash the controller.
"""
