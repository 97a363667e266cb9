"""The in-cluster controller: decides which node gets which driver pod, and when."""
