"""The controller in the cluster: which node gets which driver pod, and when."""
