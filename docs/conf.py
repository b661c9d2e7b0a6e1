"""Settings of Sphinx, for the site: `tox -e docs`.

The sources are the whole repository and not docs/ alone. So a link of a page to CONTRIBUTING.md, say, is the
same on the site and where the repository is looked at.
"""

project = "kvref"
extensions = ["myst_parser"]
include_patterns = ["*.md", "docs/*.md"]
exclude_patterns = [".*"]
root_doc = "docs/index"

html_theme = "furo"
html_title = "kvref"
html_extra_path = ["root"]
html_show_copyright = False

# Headings are linked to by the names that GitHub gives them.
myst_heading_anchors = 4
