"""Run eSpeak NG for phones.py in a separate process, because eSpeak may crash on unusual text.

    python -P tacotron2_voice/text/espeak.py  # -P: do not add this folder to the module path

Each line of standard input is a JSON request. Each line of standard output is the answer to one
request:

    {}                                          {"version": "1.52.0", "languages": {"de": "German"}}
    {"language": "de", "texts": ["eins"]}       {"phones": ["ˈaɪns"]}

If a package is missing or eSpeak reports an error, the answer is {"problem": MESSAGE}.
"""

import functools
import json
import logging
import os
import re
import signal
import sys
from typing import Any


def _backends() -> Any:
    """Return phonemizer's backend class, which uses the library from espeakng-loader."""
    import espeakng_loader
    from phonemizer.backend import EspeakBackend
    from phonemizer.backend.espeak.wrapper import EspeakWrapper

    EspeakWrapper.set_library(espeakng_loader.get_library_path())
    EspeakWrapper.set_data_path(espeakng_loader.get_data_path())
    return EspeakBackend


@functools.cache
def _backend(language: str) -> Any:
    logger = logging.getLogger("phonemizer")
    logger.setLevel(logging.ERROR)  # without this line, phonemizer warns about every foreign word
    return _backends()(
        language,
        # Use a pattern that matches nothing, because phones.py already handles punctuation.
        punctuation_marks=re.compile(r"(?!)"),
        with_stress=True,
        language_switch="remove-flags",
        logger=logger,
    )


def _phones(text: str, language: str) -> str:
    [phones] = _backend(language).phonemize([text], strip=True)
    return phones


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        if not request:
            backends = _backends()
            version = ".".join(map(str, backends.version()))
            return {"version": version, "languages": backends.supported_languages()}
        return {"phones": [_phones(text, request["language"]) for text in request["texts"]]}
    except ImportError as error:
        return {"problem": f"{error} (requirements/phones.txt)"}
    except RuntimeError as error:
        return {"problem": f"eSpeak NG reports {error}"}


def main() -> None:
    # Ignore Ctrl-C, because a terminal sends this signal to this process too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = open(os.dup(1), "w", encoding="ascii")  # noqa: SIM115
    # Redirect all other output to standard error, because standard output must contain only
    # answers.
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
