"""What a user calls: the command line, its options and exit codes, and one module for each command.

A command reads its options, calls the package that does the work, and passes the result to `report`. This
package may import every other.
"""
