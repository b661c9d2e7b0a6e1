"""Report what a run found: on the terminal, as an HTML page, as JSON, as JUnit XML, as Markdown.

This package gets plain results and knows no command. It may import every other package of `kvref_conformance`
except `commands`.
"""
