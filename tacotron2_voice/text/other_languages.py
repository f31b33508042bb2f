"""Recognize texts that are not English.

language_of("Guten Morgen, wie geht es Ihnen heute?")  # "German"
language_of("Good morning, how are you today?")  # ""
"""

import re
import unicodedata

# Frequent words that are not English words.
_FREQUENT_WORDS = {
    "German": "und das ist nicht ich sie wir ein eine einen mit auf den dem wie auch nach von zum "
    "zur sich aber oder wenn noch wird sind haben kann für über ihnen heute guten mein "
    "sein bei aus durch wurde als er es im vom beim nun da zwei",
    "French": "et est une les des je vous nous elle dans pas que qui avec sur mais ce cette sont "
    "être était très aussi bien comme tout mon ma votre c'est j'ai bonjour où à il du au",
    "Spanish": "y las es una que por para pero muy está como más su lo yo usted hola buenos días qué "
    "este esta hay también cuando todo nos en",
    "Italian": "e il gli che è una con sono della nel questo questa anche più ma ciao buongiorno "
    "oggi io lei tutto molto alla dei mi ha sul",
    "Portuguese": "e os uma que não para com mas muito está como mais você eu isso são também quando "
    "tudo ao da em olá dia bom é nos foi",
    "Dutch": "het een en niet ik je zijn naar voor dat maar ook wordt heeft aan bij nog deze wij "
    "zij goedemorgen goede vandaag wat uit dit geen weer kunt mijn er hij moe om te welke",
    "Swedish": "och att det är inte en ett jag du vi på som för med har av också när hej",
    "Polish": "nie się jest na że jak dzień dobry ale tak już czy jestem był dla po",
}
# These frequent words are also English words, or occur in names, titles and loans in English texts.
# They count only in a text that contains a word of `_FREQUENT_WORDS`.
_AMBIGUOUS = {
    "German": "der die des am zu so war wo hat",
    "French": "le la de en un plus pour",
    "Spanish": "la de del un no se el los al son con",
    "Italian": "la le del a i un lo per di come non",
    "Portuguese": "o a de do no na se por um",
    "Dutch": "de van der in is of na door was met die hoe",
    "Swedish": "den de i till men",
    "Polish": "z w i do to co",
}
_FREQUENT = {language: frozenset(words.split()) for language, words in _FREQUENT_WORDS.items()}
_ALL = {language: _FREQUENT[language].union(_AMBIGUOUS[language].split()) for language in _FREQUENT}
# Many English sentences contain some of these words.
_ENGLISH = frozenset(
    "the and of to in is you that it he was for on are with as his they at be this have from or had "
    "by but not what all were we when your can said there an she do how if will up about out them "
    "then these so some her would him has my no who i a me our us their been".split()
)
_PUNCTUATION = "\"'“”„«»()[].,;:!?¿¡…–—-"
# A language is recognized by its words only if the text contains at least _MIN_WORDS different
# frequent words of this language. All occurrences of frequent words must make up at least the
# fraction _MIN_SHARE of the words in the text.
_MIN_WORDS, _MIN_SHARE = 2, 0.2


def language_of(text: str) -> str:
    """Return the probable language of a text, such as "German" or "a language with Greek letters".
    Return "" if the text may be English."""
    scripts = [unicodedata.name(letter, "").split(" ")[0] for letter in text if letter.isalpha()]
    others = [script for script in scripts if script not in ("LATIN", "")]
    if 2 * len(others) > len(scripts):
        return f"a language with {max(others, key=others.count).capitalize()} letters"
    tokens = [
        token.strip(_PUNCTUATION)
        for token in re.split(r"[\s\-–—]+", text.lower().replace("’", "'"))
    ]
    # Other tokens, such as a@b.com, are not words.
    words = [token for token in tokens if re.fullmatch(r"[^\W\d_]+(?:'[^\W\d_]+)?", token)]
    counts = {
        language: sum(word in _ALL[language] for word in words)
        for language, frequent in _FREQUENT.items()
        if not frequent.isdisjoint(words)
    }
    language = max(counts, key=lambda name: counts[name], default="")
    if not language or counts[language] <= sum(word in _ENGLISH for word in words):
        return ""
    num_different = len(_ALL[language].intersection(words))
    is_sure = num_different >= _MIN_WORDS and counts[language] >= _MIN_SHARE * len(words)
    return language if is_sure else ""
