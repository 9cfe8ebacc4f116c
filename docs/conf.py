"""The documentation site: `make docs` builds it with Sphinx from the Markdown pages in this folder.

The site needs no network when it is read: the theme uses the fonts of the system, and nothing is loaded from elsewhere.
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent

project = "regard"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
author = "The regard authors"
copyright = author

extensions = ["myst_parser"]
exclude_patterns = ["_static"]
smartquotes = False  # --data is an option, not a dash
myst_heading_anchors = 4  # links to headings are those of GitHub: #fine-tuning

html_theme = "furo"
html_title = "regard"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_logo = html_favicon = "_static/logo.svg"
html_copy_source = False
html_show_search_summary = False  # a browser does not let a page on the disk read others to quote them
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5fae", "color-brand-content": "#1f5fae"},
    "dark_css_variables": {"color-brand-primary": "#8ab8f0", "color-brand-content": "#8ab8f0"},
}
