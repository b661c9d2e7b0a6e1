"""What a run found, for people and machines: the terminal, the page, JSON, JUnit, Markdown.

A report takes plain results and knows no command. May import every room but `commands`.
"""
