"""Make a small corpus of synthesised speech in the LJSpeech-1.1 layout, for demos and tests.

    python scripts/make_demo_corpus.py demo/corpus
    python scripts/make_demo_corpus.py demo/corpus --clips 1000 --seed 1

eSpeak NG (from the PyPI package espeakng-loader; nothing else to install) speaks sentences that
this script composes itself from a small grammar. The lengths of the clips are spread like
LJSpeech's, because that spread is what a batching strategy works on: 1.1 to 10.1 s, mean 6.6 s,
most of the mass towards the long end.

    OUT/metadata.csv      id|text|normalised text     (UTF-8, no header; the last one is spoken)
    OUT/wavs/ID.wav       22,050 Hz, mono, 16 bit
    OUT/demo_corpus.json  what the corpus was made from

The corpus follows from --clips and --seed alone and appears whole or not at all.
"""

import project_root

import argparse
import ctypes
import json
import os
import random
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
import wave
from pathlib import Path

import numpy as np

from progress import progress_bar

VERSION = 1  # raise it with every change that changes the corpus
SAMPLE_RATE = 22050
SHORTEST, LONGEST = 1.1, 10.1  # seconds: no clip of LJSpeech lies outside
# Quantiles of the lengths of LJSpeech-1.1's 13,100 clips, in seconds.
QUANTILE_LEVELS = (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
QUANTILES = (1.11, 1.66, 2.68, 3.42, 4.52, 5.38, 6.11, 6.76, 7.43, 8.06, 8.70, 9.39, 10.09)
WORDS_PER_MINUTE = 145  # eSpeak's own count, which comes out at about LJSpeech's pace
RATE_RANGE = (130, 160)  # natural rates, within which a clip lands on its target length
VOLUME = 80  # of eSpeak's 100: at 100 the loudest vowels clip
DITHER = 4.0  # standard deviation in 16-bit steps (-78 dB): keeps log-mels off their floor

# One rule per name: alternatives on separate lines or between slashes. {name} is another rule,
# [12|twelve] is written one way and spoken the other.
GRAMMAR = {
    "sentence": """
        {someone} {did_briefly}.
        {weather}.
        {event}.
        {fact}.
        {person} {action}.
        {opener}, {weather}.
        {opener}, {event}.
        {opener}, {person} {action}.
        {person} {action}, {circumstance}.
        {event}, {aside}.
        {fact}, as every child in {town} knows.
        {fact}, according to {person}.
        {opener}, {person} {action}, {circumstance}.
        {opener}, {event}, {aside}.
        Shortly before [{clock}], {person} {action}.
        {person} {action}, and {person} {action}.
        {person} {action}, while {person} {action}.
        {opener}, {person} {action}, and {person} {action}.
        {opener}, {person} {action}, {circumstance}, and {person} {action}.
        {opener}, {event}, and {person} {action}.
        {person} {action}, {circumstance}, while {person} {action}.
        {event}, {aside}; {person} {action}.
        {person}, who {action}, {action}.
        {person}, who {action}, {action}, {circumstance}.
        {person} {reported} that {fact}.
        {person} {reported} that {event}, and that {person} {action}.
        {person} {reported} that {person} {action}.
        According to {person}, {event}, {aside}.
        It was {person} who {action}, {circumstance}.
        Who {action}?
        Is it true that {person} {action}?
        Did you know that {fact}, and that {person} {action}?
    """,
    "someone": "the {job} / the {age} {job} / {first_name} / my {relative}",
    "did_briefly": """
        smiled / laughed / agreed / nodded / waited / listened / slept late / went home / sat down
        said nothing / looked up / came back / arrived early / refused / answered at once / knew why
        stayed behind / won again / forgot the key / missed the train / turned pale / sang along
        asked again / stood still / left at noon / kept quiet / hurried away / told the truth
        lost the game / paid the bill / closed the door / took a photograph / changed the subject
    """,
    "person": """
        the {job} / the {age} {job} / the {job} from {town} / the {age} {job} from {town}
        {first_name} / {first_name} and {first_name} / {title} {surname} / my {relative}
        our {age} {job} / {first_name}'s {relative} / the {job}'s {relative}
    """,
    "age": "old / young / new / retired / cheerful / patient / quiet / tired / clever / stubborn",
    "job": """
        baker / carpenter / gardener / teacher / blacksmith / librarian / fisherman / engineer
        nurse / painter / shepherd / postman / tailor / miller / pilot / printer / surveyor / cook
        potter / watchmaker / ferryman / singer / violinist / farmer / chemist / beekeeper / weaver
        porter / clerk / judge / plumber / mason / dentist / ranger / sailor / cobbler / grocer
    """,
    "relative": """
        uncle / aunt / brother / sister / cousin / nephew / niece / grandfather / grandmother
        neighbour / father / mother / daughter / son
    """,
    "first_name": """
        Alice / Martin / Clara / Hugo / Ruth / Oscar / Nina / Walter / Edith / Laura / Felix
        Helen / Arthur / Marta / Daniel / Rose / Victor / Emma / Henry / Julia / Samuel / Irene
        Paul / Robert
    """,
    "surname": """
        Gray / Turner / Marsh / Holloway / Bennett / Ashworth / Lindley / Carver
        Whitfield / Mercer / Thorne / Hadley / Novak / Fielding / Barlow / Winslow
        Sutton / Prescott
    """,
    "title": """
        [Mr.|Mister] / [Mrs.|Missus] / [Dr.|Doctor] / [Capt.|Captain] / [Col.|Colonel]
        [Rev.|Reverend] / Professor / Miss / Judge
    """,
    "town": """
        Dover / Oxford / Bristol / Boston / Geneva / Lisbon / Vienna / Bergen / Dublin / Chester
        Salem / Florence / Hamburg / Cambridge / Quebec / Portland / Athens / Turin / Leeds
    """,
    "action": """
        repaired {machine} with {tool} / tried to repair {machine} / took {machine} apart
        carried {load} {to_place} / sold [{count}] {goods} {at_place}
        bought [{count}] {goods} for [{price}] / walked [{few}] miles to {town} / hurried {to_place}
        painted {paintable} {colour} / sent a letter to {person} / listened to {sound}
        waited {duration} for {awaited} / planted [{count}] {plants} behind {building}
        opened {openable} and looked inside / counted the {goods} twice
        learned to {skill} / taught {learners} to {skill}
        borrowed {machine} from {person} / measured {measured}
        told {learners} a story about {story} / drew a map of {measured} / climbed {height}
        found {found} under {hiding_place} / studied {book} by the light of {light}
        spent {duration} in {building}
        promised to bring {food} on {weekday} / crossed {water} in {crossing}
        cut {food} into [{few}] equal pieces
        asked {person} about {story} / collected {load} from {building}
        cooked {food} for [{count}] guests
        hung a picture of {measured} above {spot} / locked {openable} and hid the key
        swept the floor of {building} / lost [{few}] {goods} on the way to {town}
    """,
    "reported": "said / claimed / remembered / heard / discovered / explained / wrote",
    "machine": """
        the kitchen clock / the old printing press / a broken bicycle / the water pump
        the church organ / a silver watch / the sewing machine / the weather vane
        a brass telescope / the steam engine / a wooden loom / the radio / an old typewriter
        the coffee mill / a pocket compass
    """,
    "tool": """
        a borrowed screwdriver / a piece of wire / two drops of oil / a small hammer / great care
        a length of copper pipe / parts from another one / nothing but patience / a new spring
    """,
    "load": """
        a basket of apples / two heavy suitcases / a bundle of firewood / a crate of oranges
        three buckets of water / a roll of canvas / a sack of flour / the morning's letters
        an armful of books / a ladder / a box of candles / a pile of clean plates / fresh bread
    """,
    "goods": """
        lamps / baskets / blankets / postcards / umbrellas / candles / chairs / jars of honey
        loaves of bread / pairs of gloves / bottles of ink / tickets / straw hats / clay pots / maps
        bags of seed / wooden spoons / yards of cloth / boxes of matches / dictionaries / tulips
    """,
    "to_place": """
        to the harbour / to the station / to the top of the hill / across the bridge / to the market
        along the canal / through the forest / to the mill / up the narrow stairs / over the pass
        to the edge of town / to {town} / to the lighthouse / from {town} to {town}
    """,
    "at_place": """
        at the market / at the harbour / in {town} / beside the fountain / at the spring fair
        outside the station / in a shop near the cathedral / on the corner of {street}
    """,
    "paintable": """
        the garden gate / the fence / the front door / the boat / the kitchen ceiling
        the shutters / the bench by the river / every chair in the house / the letter box / the barn
    """,
    "colour": """
        green / dark red / pale blue / yellow / white / bright orange / the colour of the sea
        grey / brown / the same blue as before / purple
    """,
    "sound": """
        the rain on the roof / the evening news / the wind in the chimney / a distant trumpet
        the waves below the cliff / an old record / the birds in the orchard / the choir practising
        a speech about the new railway / the church bells / the crickets / the ticking of the clock
    """,
    "duration": """
        [{few}] hours / [{few}] weeks / nearly [{few}] months / half a day / a whole afternoon
        more than [{count}] minutes / exactly [{count}] days / almost a year
    """,
    "awaited": """
        the last train / an answer / the doctor / the rain to stop / the ferry / the baker to open
        the ice to melt / a telephone call / better weather / the paint to dry / news from {town}
    """,
    "plants": """
        apple trees / rose bushes / rows of beans / pumpkins / cherry trees / lavender plants
        oaks / tulip bulbs / onions / vines / young birches / tomato plants / sunflowers
    """,
    "building": """
        the town hall / the school / the old mill / the museum / the railway station / the theatre
        the post office / the bakery / the hospital / the windmill / the library / the stone barn
        the hotel / the lighthouse / the customs house / the greenhouse / the chapel / the workshop
    """,
    "openable": """
        the wooden chest / a dusty cupboard / the letter box / the tool shed / the safe
        the last drawer / a small tin / the piano / the cellar door / the leather suitcase
    """,
    "learners": """
        the children / a group of students / two young sailors / the apprentices / the whole class
        the twins / a dozen visitors / anyone who asked / the new neighbours
    """,
    "skill": """
        swim / skate / play the flute / bake bread / sharpen a knife / tie a proper knot / sail
        speak Italian / read the stars / keep bees / ride a horse / draw a straight line / dance
        mend a net / fold a letter / whistle / recognise birds / play chess / develop photographs
    """,
    "measured": """
        the island / the valley / the castle garden / the frozen lake / the main square / the bay
        the harbour / the northern coast / the battlefield / the royal park / the riverbank
    """,
    "story": """
        a lost ship / the great flood / the winter of [{year}] / a talking fox / the missing key
        a lighthouse keeper / the founding of {town} / the first aeroplane / a very old tortoise
        the election of [{year}] / the comet / the king's gardener / a blue stone
    """,
    "height": """
        the tower / the highest hill in the county / [{steps}] steps / the old oak / a rope ladder
        the north face / the church tower / onto the roof / the volcano / over the garden wall
    """,
    "found": """
        a gold coin / [{few}] old letters / a rusty key / a map of {town} / a silver spoon
        a family of mice / the missing glove / a photograph from [{year}] / somebody's hat
        a bottle of wine / the answer / a note in an unknown hand
    """,
    "hiding_place": """
        the stairs / the kitchen table / the fireplace / the floorboards / the bridge
        the old sofa / the bed / the workbench / the piano / the window
    """,
    "spot": "the fireplace / the piano / the bed / the kitchen table / the stairs / the workbench",
    "book": """
        a book about whales / the history of {town} / the plans of {building} / a Latin grammar
        an old cookery book / the timetable / the newspaper / a treatise on clocks / the contract
        a chart of the coast / the diary of {title} {surname} / an atlas from [{year}]
    """,
    "light": """
        a candle / the fire / the moon / a street lamp / a single lantern / the setting sun
        a small green lamp / the kitchen stove
    """,
    "food": """
        an apple pie / the cheese / a large melon / fresh bread / a plum cake / roast chicken
        a pot of soup / the last pear / a lemon tart / pancakes / a whole salmon / ginger biscuits
    """,
    "water": "the river / the lake / the channel / the bay / the flooded meadow / the strait",
    "crossing": """
        a rowing boat / a leaking canoe / a small ferry / under [{few}] minutes / a fishing boat
        thick fog / the middle of the night / a homemade raft / broad daylight
    """,
    "street": "Mill Lane / Bridge Street / Station Road / Church Hill / Orchard Way / Queen Street",
    "weather": """
        it was raining again / the snow kept falling / the fog lifted / a storm was coming
        the sky was clear / the wind turned to the north / it was the hottest day of the year
        a cold rain fell all night / the sun came out at last / there was frost on every window
        thunder rolled over the hills / the ice on the lake began to melt / it was bitterly cold
        the first leaves were turning red / the temperature fell by [{few}] degrees / it was warm
        the clouds moved slowly towards {town} / a light breeze came from the sea / night fell
    """,
    "event": """
        the train to {town} left at [{clock}] / the ferry from {town} was {late}
        the night train from {town} to {town} stopped at every station
        the river rose by [{few}] feet
        the price of {commodity} {rose} by [{percent}] / the bells of {church} rang [{few}] times
        the clock on {building} stopped at [{clock}] / the road to {town} was closed for {duration}
        the lights went out in {building} / more than [{steps}] people came to the {festivity}
        a ship carrying {commodity} ran aground near {town} / the {festivity} lasted {duration}
        {building} was {changed} / a parcel from {town} arrived at [{clock}]
        the council voted to close {building}
        smoke was rising from {building} / a black cat slept on the roof of {building}
        the telegraph line to {town} was cut / the museum bought [{count}] paintings
        the orchestra from {town} played for [{few}] hours
        the shop on {street} opened at [{clock}] / wild geese flew over {building}
        the experiment failed [{few}] times
    """,
    "fact": """
        {building} was {changed} in [{year}] / the bridge near {building} was rebuilt in [{year}]
        {person} moved to {town} in [{year}] / {person} learned to {skill} at the age of [{count}]
        {person} lived in {town} for [{count}] years / the tower of {church} is [{count}] feet high
        {person} lived at [No.|number] [{count}], {street} / {building} had only [{count}] windows
    """,
    "late": "late again / full / [{count}] minutes late / early for once / delayed by fog",
    "changed": """
        built / rebuilt / sold / damaged by fire / closed / enlarged / painted white / opened
        given a new roof
    """,
    "commodity": """
        wool / coal / sugar / copper / timber / coffee / salt / cotton / wheat / paper / iron / tea
        tobacco / glass / rice
    """,
    "rose": "rose / fell / went up / dropped",
    "church": """
        the cathedral / [St.|Saint] Mary's / [St.|Saint] Peter's / the old chapel / the abbey
        [St.|Saint] Anne's
    """,
    "festivity": "wedding / spring fair / concert / harvest festival / boat race / auction / play",
    "opener": """
        on {weekday} morning / late on {weekday} / in [{year}] / in the evening
        in the spring of [{year}] / during the long winter of [{year}] / after the storm
        on the [{day}] of {month} / just before sunrise / in the middle of {month} / after lunch
        by the end of {month} / [{count}] years ago / for the first time in [{count}] years
        to everyone's surprise / once again / two days later
        when the fog had lifted / while the others were asleep / that summer
        one evening in {month} / as soon as the snow had melted / without any warning / at last
        after the floods of [{year}] / on a cold night in {month} / long ago
    """,
    "weekday": "Monday / Tuesday / Wednesday / Thursday / Friday / Saturday / Sunday",
    "month": """
        January / February / March / April / May / June / July / August / September / October
        November / December
    """,
    "circumstance": """
        because there was nothing else to do / because the days were growing shorter
        because the guests were expected at [{clock}] / because nobody else had offered to
        although nobody had asked for it / although it took {duration} / with great care
        so that the children could see how it was done / so that nothing would be wasted
        just before the shops closed / without saying a word to anyone / as quickly as possible
        with the help of {person} / as people in {town} had always done / in spite of the cold
        hoping that it would be enough / to the delight of {learners} / in spite of the noise
        although it was almost dark / as the doctor had advised / for the second time that day
        before anyone could object / because the letter from {town} had said so / as a favour
        long after everyone else had gone to bed / for no clear reason
    """,
    "aside": """
        and nobody was surprised / as the newspapers had predicted / although it was only {month}
        which caused a good deal of talk / and the rest of the day was quiet / or so people said
        for the third time in [{count}] years / much to the regret of {person}
        and the whole street came out to look
        just as {person} had feared / but few people noticed / and it has not happened since
        and {learners} stayed at home / so the meeting was put off until {weekday}
    """,
}

NUMBER_WORDS = """\
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen \
sixteen seventeen eighteen nineteen
zero ten twenty thirty forty fifty sixty seventy eighty ninety
first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"""
ONES, TENS, DAYS = (line.split() for line in NUMBER_WORDS.splitlines())

stop_requested = threading.Event()  # set by Ctrl-C and SIGTERM when run as a script


def spell(number):
    """Spell 0 to 99 in words: 42 -> "forty-two"."""
    if number < 20:
        return ONES[number]
    tens, ones = divmod(number, 10)
    return f"{TENS[tens]}-{ONES[ones]}" if ones else TENS[tens]


def spell_pair(number, zero):
    """Spell 100 to 9999 as two pairs of digits, as years and times are read.

    `zero` is said when the second pair is 0: 1862 -> "eighteen sixty-two", 705 -> "seven oh five".
    """
    first, second = divmod(number, 100)
    if second == 0:
        return f"{spell(first)} {zero}"
    return f"{spell(first)} {'oh ' if second < 10 else ''}{spell(second)}"


def compile_grammar():
    """Return {rule: [alternatives]}: GRAMMAR split up, and the rules for numbers beside it."""
    rules = {
        name: [line.strip() for line in re.split(r"[\n/]", text.strip())]
        for name, text in GRAMMAR.items()
    }
    ordinals = {1: "st", 2: "nd", 3: "rd"}
    rules["few"] = [f"{n}|{spell(n)}" for n in range(3, 13)]
    rules["count"] = [f"{n}|{spell(n)}" for n in range(12, 100)]
    rules["steps"] = [f"{n}00|{spell(n)} hundred" for n in range(2, 10)]
    rules["percent"] = [f"{n}%|{spell(n)} per cent" for n in range(2, 30)]
    rules["price"] = [f"${n}|{spell(n)} dollars" for n in range(2, 90)]
    rules["year"] = [f"{n}|{spell_pair(n, 'hundred')}" for n in range(1870, 1980)]
    rules["day"] = [f"{n}{ordinals.get(n, 'th')}|{word}" for n, word in enumerate(DAYS, start=1)]
    o_clock = "o'clock"
    times = [100 * hour + minute for hour in range(1, 13) for minute in range(0, 60, 5)]
    rules["clock"] = [f"{n // 100}:{n % 100:02d}|{spell_pair(n, o_clock)}" for n in times]
    return rules


def compose_sentence(rules, rng):
    """Compose one sentence. Returns (as written, as spoken). Nothing is chosen twice."""
    used = set()

    def expand(rule):
        choice = rng.choice([option for option in rules[rule] if option not in used])
        used.add(choice)
        return re.sub(r"\{(\w+)\}", lambda match: expand(match[1]), choice)

    marked = expand("sentence")
    both = [re.sub(r"\[(.*?)\|(.*?)\]", choice, marked) for choice in (r"\1", r"\2")]
    return tuple(text[0].upper() + text[1:] for text in both)


def draw_target_lengths(clips, seed):
    """Draw the clips' lengths in seconds, [clips], spread like LJSpeech's.

    One length falls into each 1/clips of the distribution, so that small corpora have its shape
    too; their order is random.
    """
    rng = np.random.default_rng(seed)
    level = (rng.permutation(clips) + rng.random(clips)) / clips
    return np.interp(level, QUANTILE_LEVELS, QUANTILES)


class Voice:
    """eSpeak NG's American English voice.

    Raises RuntimeError, saying what to do, where eSpeak NG is absent or does not start.
    """

    def __init__(self):
        try:
            import espeakng_loader
        except ImportError:
            raise RuntimeError(
                "the Python package espeakng_loader, which carries eSpeak NG, is not installed; "
                f"install it: {shlex.quote(sys.executable)} -m pip install espeakng-loader"
            ) from None
        try:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                self._start(espeakng_loader, Path(folder))
        except (OSError, RuntimeError, AttributeError) as error:
            raise RuntimeError(
                f"eSpeak NG from the package espeakng-loader does not start on this machine "
                f"({error}); try to install the package anew: {shlex.quote(sys.executable)} -m pip "
                "install --force-reinstall espeakng-loader"
            ) from None

    def _start(self, espeakng_loader, folder):
        # eSpeak carries state from one utterance to the next, and even past its termination; a
        # library loaded from a file of its own starts afresh, so that every corpus of a process
        # is the same as in a fresh process.
        path = espeakng_loader.get_library_path()
        try:
            self._library = ctypes.CDLL(shutil.copy(path, folder))
        except OSError:  # such as a temporary folder from which nothing may be executed
            self._library = ctypes.CDLL(path)
        data = espeakng_loader.get_data_path()
        if len(os.fsencode(data)) > 140:  # eSpeak cuts longer paths off at 160 bytes
            (folder / "espeak-ng-data").symlink_to(data, target_is_directory=True)
            data = str(folder / "espeak-ng-data")

        synchronous, no_exit = 2, 0x8000  # constants of eSpeak's speak_lib.h
        rate = self._library.espeak_Initialize(synchronous, 0, os.fsencode(data), no_exit)
        if rate != SAMPLE_RATE:
            raise RuntimeError(f"espeak_Initialize gave {rate}, expected {SAMPLE_RATE} Hz")
        self._chunks = []
        callback_type = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_int16), ctypes.c_int, ctypes.c_void_p
        )
        self._callback = callback_type(self._receive)  # kept here: eSpeak holds only a pointer
        self._library.espeak_SetSynthCallback(self._callback)
        if self._library.espeak_SetVoiceByName(b"en-us") != 0:
            raise RuntimeError("its voice en-us is missing")
        self._library.espeak_Synth.argtypes = [
            *(ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int),
            *(ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p),
        ]

    def _receive(self, samples, count, _events):
        if samples and count > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0  # go on

    def speak(self, text, words_per_minute):
        """Speak `text`. Returns int16 samples at 22,050 Hz without the silence at either end."""
        self._chunks.clear()
        data, utf8, rate, volume = text.encode(), 1, 1, 2  # constants of eSpeak's speak_lib.h
        self._library.espeak_SetParameter(rate, words_per_minute, 0)
        self._library.espeak_SetParameter(volume, VOLUME, 0)
        status = self._library.espeak_Synth(data, len(data) + 1, 0, 0, 0, utf8, None, None)
        self._library.espeak_Synchronize()
        samples = np.concatenate(self._chunks) if self._chunks else np.zeros(0, np.int16)
        audible = np.flatnonzero(np.abs(samples.astype(int)) > 50)
        if status != 0 or len(audible) == 0:
            raise RuntimeError(f"eSpeak NG made no sound (status {status}) of the text: {text}")
        return samples[audible[0] : audible[-1] + 1]


def estimate_seconds(text):
    """Estimate how long eSpeak takes to speak `text` at WORDS_PER_MINUTE; mostly within 10 %."""
    pauses = text.count(",") + text.count(";")
    return 0.17 + 0.057 * len(text) + 0.36 * pauses  # a least-squares fit over 400 sentences


def speak_for(voice, text, seconds):
    """Speak `text` for about `seconds`. Returns the samples, or None where that is unnatural."""
    words_per_minute = WORDS_PER_MINUTE
    for _ in range(4):
        samples = voice.speak(text, words_per_minute)
        ratio = len(samples) / SAMPLE_RATE / seconds
        if abs(ratio - 1) < 0.015:
            fits = SHORTEST <= len(samples) / SAMPLE_RATE <= LONGEST
            return samples if fits else None
        words_per_minute = round(words_per_minute * ratio)
        if not RATE_RANGE[0] <= words_per_minute <= RATE_RANGE[1]:
            return None
    return None


def make_clips(voice, clips, seed):
    """Yield (written, spoken, samples) of each clip; no two clips say the same."""
    rules = compile_grammar()
    rng = random.Random(seed)
    dither_rng = np.random.default_rng([seed, 1])
    said = set()
    for seconds in draw_target_lengths(clips, seed):
        for _ in range(20_000):
            written, spoken = compose_sentence(rules, rng)
            if spoken in said or abs(estimate_seconds(spoken) / seconds - 1) > 0.08:
                continue
            samples = speak_for(voice, spoken, seconds)
            if samples is not None:
                break
        else:
            raise RuntimeError(
                f"the grammar has no more sentences of {seconds:.1f} s after {len(said)} clips; "
                "ask for fewer --clips"
            )
        said.add(spoken)
        noisy = samples + dither_rng.normal(0, DITHER, len(samples))
        yield written, spoken, np.clip(np.rint(noisy), -32768, 32767).astype("<i2")


def holds_corpus(out, record):
    """Whether `out` holds the corpus of `record` already.

    Raises FileExistsError where it holds anything else, or only part of the corpus.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    record_file = out / "demo_corpus.json"
    if not record_file.is_file():
        raise FileExistsError(
            f"{out} exists and is no demo corpus; nothing was changed. Name another folder."
        )
    found = record_file.read_text(encoding="utf-8").strip()
    if found != record:
        raise FileExistsError(
            f"{out} holds another demo corpus; nothing was changed. Name another folder, or "
            f"delete this one first.\nfound:  {found}\nwanted: {record}"
        )
    lines = (out / "metadata.csv").read_text(encoding="utf-8").splitlines()
    missing = [
        path
        for path in (out / "wavs" / f"{line.split('|')[0]}.wav" for line in lines)
        if not path.is_file()
    ]
    if missing:
        raise FileExistsError(
            f"{out} holds this demo corpus, but {len(missing)} of its clips are missing, such as "
            f"{missing[0]}; delete the folder and run this again"
        )
    return True


def write_clips(folder, clips, seed, voice):
    """Write the corpus into the new `folder`. Returns the clips' lengths in seconds, [clips]."""
    (folder / "wavs").mkdir(parents=True)
    lines, lengths = [], []
    spoken_clips = progress_bar(
        "Speaking", clips, " clips", iterable=make_clips(voice, clips, seed)
    )
    for number, (written, spoken, samples) in enumerate(spoken_clips, start=1):
        if stop_requested.is_set():
            raise KeyboardInterrupt
        clip_id = f"DEMO-{number:04d}"
        with wave.open(str(folder / "wavs" / f"{clip_id}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(SAMPLE_RATE)
            file.writeframes(samples.tobytes())
        lines.append(f"{clip_id}|{written}|{spoken}\n")
        lengths.append(len(samples) / SAMPLE_RATE)
    (folder / "metadata.csv").write_text("".join(lines), encoding="utf-8", newline="\n")
    return np.array(lengths)


def make_corpus(out, clips=240, seed=0):
    """Make the corpus in the folder `out` and say so; do nothing where it is there already.

    Raises FileExistsError where `out` holds anything else, RuntimeError where eSpeak NG is absent
    or does not start, OSError where `out` cannot be written. `out` is then as it was before.
    """
    start = time.perf_counter()
    out = Path(out).absolute()
    made_by = "scripts/make_demo_corpus.py (speech synthesised by eSpeak NG)"
    record = json.dumps({"made_by": made_by, "version": VERSION, "clips": clips, "seed": seed})
    if holds_corpus(out, record):
        print(f"{out} holds this demo corpus already ({clips} clips, seed {seed}): nothing to do.")
        return
    voice = Voice()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as building:
        folder = Path(building) / out.name
        lengths = write_clips(folder, clips, seed, voice)
        (folder / "demo_corpus.json").write_text(record + "\n", encoding="utf-8")
        os.replace(folder, out)
    print(
        f"Wrote {clips} clips of synthesised speech to {out} in {time.perf_counter() - start:.1f} s"
        f": {lengths.sum() / 60:.1f} minutes; shortest {lengths.min():.2f} s, mean "
        f"{lengths.mean():.2f} s, longest {lengths.max():.2f} s.\n"
        f"Next: python scripts/prepare_ljspeech.py {shlex.quote(str(out))} --out filelists/demo"
    )


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", metavar="OUT", help="folder to make; its parents are made too")
    parser.add_argument("--clips", type=int, default=240, help="number of clips (240: 26 minutes)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another corpus (0)")
    args = parser.parse_args(arguments)
    if args.clips < 1:
        parser.error(f"--clips {args.clips}: expected 1 or more")
    if args.seed < 0:
        parser.error(f"--seed {args.seed}: expected 0 or more")
    try:
        make_corpus(args.out, args.clips, args.seed)
    except KeyboardInterrupt:
        sys.exit("stopped; nothing was written")
    except (RuntimeError, OSError) as error:
        sys.exit(f"make_demo_corpus: {error}")


if __name__ == "__main__":
    # A handler that raises would mostly do so inside eSpeak's callback, where it would be lost.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop_requested.set())
    main()
