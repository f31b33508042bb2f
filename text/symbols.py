"""The 148 input symbols of the model; a symbol's place in the list is its id.

The order is that of NVIDIA/tacotron2: the rows of a trained embedding follow it. Phones carry an
"@", so that the ARPAbet phone B and the letter B stay two symbols.
"""

_PADDING = "_"  # id 0, which fills up a batch
_PUNCTUATION = "-!'(),.:;? "
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PHONES = (
    "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W "
    "Y Z ZH"
).split()


# A vowel comes bare and with stress 0 (none), 1 (primary) and 2 (secondary).
_STRESSES = {phone: ["", "0", "1", "2"] if phone[0] in "AEIOU" else [""] for phone in _PHONES}

symbols: list[str] = [
    _PADDING,
    *_PUNCTUATION,
    *_LETTERS,
    *(f"@{phone}{stress}" for phone in _PHONES for stress in _STRESSES[phone]),
]
