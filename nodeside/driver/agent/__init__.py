"""The driver pod's main process: bring the driver up, and keep it up until told to stop.

run                   the loop
watch                 what wakes it: uevents, files, signals
resolution            driver.yaml read again when it has changed
"""
