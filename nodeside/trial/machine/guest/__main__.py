"""`python3 -m nodeside.trial.machine.guest`, which the initramfs starts as PID 1."""

from nodeside.trial.machine.guest.agent import main

main()
