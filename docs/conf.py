"""Settings of Sphinx, for the site: `tox -e docs`.

The sources are the whole repository, not docs/ alone. So a link to CONTRIBUTING.md, say, works on the site
and in the repository alike.
"""

project = "kvref"
extensions = ["myst_parser", "sphinx_design"]
myst_enable_extensions = ["colon_fence"]
include_patterns = ["*.md", "docs/*.md"]
exclude_patterns = [".*"]
root_doc = "docs/index"

html_theme = "furo"
html_title = "kvref"
html_extra_path = ["root"]
html_show_copyright = False

# Links to headings use the names that GitHub gives them.
myst_heading_anchors = 4
