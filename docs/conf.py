"""Sphinx settings of the documentation: `sphinx-build -W docs OUT`. The build reads the tree alone, never the network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "nalb"
extensions = [
    "myst_parser",  # pages are Markdown
    "sphinxarg.ext",  # reference of the commands, from their parsers
    "structs",  # reference of the files, from the msgspec Structs that read and write them
]
myst_heading_anchors = 3  # links to the headings of another page work as on a forge
exclude_patterns = ["extensions", "static"]
highlight_language = "sh"  # of blocks that do not say theirs
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["wide.css"]
smartquotes = False  # `--out` is no dash
html_theme = "furo"
html_title = "nalb"
