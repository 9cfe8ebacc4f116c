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
nitpicky = True
myst_heading_anchors = 4  # links to headings are those of GitHub: #fine-tuning

html_theme = "furo"
html_title = "regard"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "sidebar_hide_name": False,
    "light_css_variables": {"color-brand-primary": "#1d5f8a", "color-brand-content": "#1d5f8a"},
    "dark_css_variables": {"color-brand-primary": "#8cc4ea", "color-brand-content": "#8cc4ea"},
}
