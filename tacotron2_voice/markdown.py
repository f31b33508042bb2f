"""Read headings, paragraphs and list items from a Markdown file, without the Markdown syntax.

    read_markdown("a.md", "# Title\\n\\nSee [the *docs*](x.md).").paragraphs
    # [(1, "Title"), (3, "See the docs.")]

Code blocks, tables, HTML and images are skipped. This module needs the package markdown-it-py.
"""

import re
from collections import Counter

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tacotron2_voice.prose import Prose, join_lines, joined_note
from tacotron2_voice.utils.errors import count_of

SKIPPED = {
    "fence": "code block",
    "code_block": "code block",
    "table_open": "table",
    "html_block": "HTML block",
}
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
# Matches front matter at the start of a file: YAML between two lines of hyphens, or TOML between
# two lines of plus signs. The first line of the front matter begins with a key.
_FRONT_MATTER = re.compile(
    r"\A(?:---\r?\n(?=[\w-]+:).*?\n(?:---|\.\.\.)|\+\+\+\r?\n.*?\n\+\+\+)[ \t]*(?=\r?\n|\Z)",
    re.DOTALL,
)
_FOOTNOTE = re.compile(r"^\[\^[^\]\s]+\]:.*(?:\n[ \t]+\S.*)*", re.MULTILINE)
_FOOTNOTE_REFERENCE = re.compile(r"\[\^[^\]\s]+\]")
# Between digits, an asterisk is a multiplication sign, as in 2*3*4. Markdown would read these
# asterisks as emphasis.
_TIMES = re.compile(r"(?<=\d)\*(?=\d)")
_ESCAPED_TIMES = re.compile(r"(?<=\d)\\\*(?=\d)")
# These private-use characters stand for escaped brackets: \[pause 1\] is text, not a tag.
_OPENING, _CLOSING = "\ue000", "\ue001"
_ESCAPED_TAG = re.compile(
    rf"{_OPENING}\s*((?:pause|speaker)\b[^\[\]{_OPENING}{_CLOSING}]*)[{_CLOSING}\]]", re.IGNORECASE
)
_TASK = re.compile(r"^\[[ xX]\]\s+")


def read_markdown(source: str, text: str) -> Prose:
    """Return the paragraphs of a Markdown text, and notes about skipped blocks.

    `source` is the name of the file, for the notes.
    """
    paragraphs: list[tuple[int, str]] = []
    joined: list[str] = []
    skipped: Counter[str] = Counter()
    for kind, pattern in (("front matter", _FRONT_MATTER), ("footnote", _FOOTNOTE)):
        # Blank lines replace the skipped text, so that line numbers stay correct.
        text, skipped[kind] = pattern.subn(lambda match: "\n" * match[0].count("\n"), text)
    text = _TIMES.sub(r"\*", _FOOTNOTE_REFERENCE.sub("", text))
    is_table = False
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.disable("text_join")  # keep characters with a backslash as separate tokens
    for token in parser.parse(text):
        if token.type in SKIPPED:
            skipped[SKIPPED[token.type]] += 1
        if token.type in ("table_open", "table_close"):
            is_table = token.type == "table_open"
        if token.type != "inline" or is_table:
            continue
        for child in token.children or []:
            skipped["image"] += child.type == "image"
            is_tag = child.type == "html_inline" and not _BREAK.fullmatch(child.content)
            skipped["HTML tag"] += is_tag
        lines = _text_of(token.children or []).split("\n")
        lines = [line.strip() for line in lines if line.strip()]
        if lines and token.map:
            lines[0] = _TASK.sub("", lines[0])
            paragraphs.append((token.map[0] + 1, join_lines(lines, joined)))
    notes = joined_note(source, joined)
    counts = [count_of(count, what) for what, count in skipped.items() if count]
    if counts:
        notes.append(f"{source}: skipped {', '.join(counts)}")
    return Prose(paragraphs, notes)


def _text_of(tokens: list[Token]) -> str:
    """Return the text of inline tokens, without images and HTML tags. If the brackets of a tag
    such as [pause 1] are escaped with backslashes, the words in the brackets are spoken."""
    texts = []
    for token in tokens:
        if token.type == "text_special" and token.content in "[]":
            texts.append(_OPENING if token.content == "[" else _CLOSING)
        elif token.type in ("text", "text_special"):
            texts.append(token.content)
        elif token.type == "code_inline":
            texts.append(_ESCAPED_TIMES.sub("*", token.content))
        elif token.type in ("softbreak", "hardbreak") or _BREAK.fullmatch(token.content):
            texts.append("\n")
    text = _ESCAPED_TAG.sub(r"\1", "".join(texts))
    return text.replace(_OPENING, "[").replace(_CLOSING, "]")
