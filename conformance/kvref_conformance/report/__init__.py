"""What a run found, for people and machines: the terminal, the page, JSON, JUnit, Markdown.

A report takes plain results and knows no command. This package may import every other but `commands`.
"""
