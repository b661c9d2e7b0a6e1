"""The command line: its options, its exit codes, and one module for each command.

A command reads its options, calls the package that does the work, and passes the result to `report`. This
package may import every other package of `kvref_conformance`.
"""
