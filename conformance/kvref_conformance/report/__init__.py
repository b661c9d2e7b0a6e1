"""What a run found, for people and machines: the terminal, the page, JSON, JUnit, Markdown.

This package gets plain results and knows no command. It may import every other package but `commands`.
"""
