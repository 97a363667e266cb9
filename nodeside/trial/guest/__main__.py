"""The entry point `python3 -m nodeside.trial.guest`, which the initramfs starts as PID 1."""

from nodeside.trial.guest.agent import main

main()
