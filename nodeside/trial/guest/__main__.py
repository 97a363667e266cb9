"""`python3 -m nodeside.trial.guest`: what the initramfs starts as PID 1."""

from nodeside.trial.guest.agent import main

main()
