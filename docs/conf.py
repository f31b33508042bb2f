"""Settings of the documentation site (make docs). The pages are the Markdown files of the
repository, so that the same pages and links work on GitHub."""

project = "Tacotron 2 with length batching"
extensions = ["myst_parser", "sphinx_external_toc"]
external_toc_path = "docs/_toc.yml"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/**.md",
    "research/**.md",
    "length_batching/*.md",
    "tacotron2_voice/*.md",
    "voices/**.md",
]
html_theme = "furo"
html_title = project
myst_heading_anchors = 4  # makes links to headings work as on GitHub
