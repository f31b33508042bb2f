"""Compute a version (a hash) of the rules that convert texts to symbols.

    rules_version()  # such as "8b5d0c3e91f2a764"

Checkpoints, exported voices and filelist caches store the version of the rules. If a text is
converted by different rules than in training, the model may pronounce the text differently.
"""

import ast
import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent
# The modules that convert English text to symbols.
RULE_FILES = ("sequences.py", "cleaners.py", "english/*.py")


@functools.cache
def rules_version(pronunciations: tuple[str, ...] = ()) -> str:
    """Return a hash of the rules and pronunciations. The hash does not depend on comments and
    docstrings."""
    version = version_of(*RULE_FILES)
    if not pronunciations:
        return version
    return hashlib.sha256("\n".join([version, *pronunciations]).encode()).hexdigest()[:16]


@functools.cache
def version_of(*patterns: str) -> str:
    """Return a hash of the modules in this folder whose paths match a pattern, such as "**/*.py"."""
    digest = hashlib.sha256()
    for pattern in patterns:
        for path in sorted(FOLDER.glob(pattern)):
            digest.update(code_of(path.read_text(encoding="utf-8")).encode())
    return digest.hexdigest()[:16]


def uses_english_rules(cleaner_names: Iterable[str]) -> bool:
    """Return whether these cleaners apply the rules that convert English text to symbols."""
    return any(name.startswith("english") for name in cleaner_names)


def code_of(source: str) -> str:
    """Return the syntax tree of a module as a string, without docstrings.

    This function does not use `ast.dump`, because the output of `ast.dump` depends on the Python
    version.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text_alone(one)]  # type: ignore[attr-defined]
    return _as_text(tree)


def _is_text_alone(node: ast.AST) -> bool:
    """Return whether a statement consists of only a string, such as a docstring."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def _as_text(value: object) -> str:
    if isinstance(value, list):
        return f"[{','.join(_as_text(item) for item in value)}]"
    if isinstance(value, ast.Constant):
        return repr(value.value)
    if not isinstance(value, ast.AST):
        return repr(value)
    # Skip empty fields, because newer Python versions add fields that are empty for older syntax.
    parts = [
        f"{name}={_as_text(child)}"
        for name, child in ast.iter_fields(value)
        if child is not None and child != []
    ]
    return f"{type(value).__name__}({','.join(parts)})"
