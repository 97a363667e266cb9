"""What a run of the tests costs: seconds of a processor, by tier, by file and by kind of program.

meter       what one process and its descendants used; every process that runs tests has one
memory      how much of it the whole run held at most
cold        what was built because no cache had it, and how long that took
record      what a whole run used; its file, its tables, two runs side by side
"""
