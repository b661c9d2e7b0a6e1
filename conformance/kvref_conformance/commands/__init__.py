"""What a user calls: the command line, its options and exit codes, and one module for each command.

A command reads its options, calls the room that does the work, and hands the result to `report`. May import
every room.
"""
