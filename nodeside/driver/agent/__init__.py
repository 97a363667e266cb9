"""The driver pod's main process: bring the driver up, and keep it up until it is stopped.

run                   the loop
watch                 what wakes the loop: uevents, files, signals
resolution            resolves driver.yaml again after a change
"""
