"""What a run of the tests costs: seconds of a processor, by tier, by file and by kind of program.

meter       what one process and its descendants used; every process that runs tests has one
record      what a whole run used; its file, its tables, two runs side by side
"""
