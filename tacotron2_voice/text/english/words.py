"""Define the tables of words that the rules of english/__init__.py use."""

MONTHS = dict(
    pair.split(":")
    for pair in (
        "jan:january feb:february mar:march apr:april may:may jun:june jul:july aug:august "
        "sept:september sep:september oct:october nov:november dec:december"
    ).split()
)
DAYS = dict(
    pair.split(":")
    for pair in (
        "mon:monday tues:tuesday tue:tuesday weds:wednesday wed:wednesday thurs:thursday thu:thursday "
        "fri:friday sat:saturday sun:sunday"
    ).split()
)

# Words that begin a sentence and are not names. If such a word follows an abbreviation, the full
# stop also ends the sentence ("at 5 p.m. He left"). If such a word precedes "St." or "Dr.", the
# abbreviation does not mean a street.
OPENERS = set(
    "A After All Also An And Are As Ask At Because Before Both Bring But By Bye Call Can Come Could "
    "Did Do Does Each Every Everyone Finally For From Get Give Go Goodbye He Hello Her Here His How "
    "However I If Immediately In Instead Is It Its Just Keep Later Let Look Maybe Meanwhile Meet Most My "
    "Nearly No Nobody Not Nothing Now On Once One Only Or Our Perhaps Please Put See Send Several She Should "
    "Since So Some Someone Sometimes Soon Stay Still Take Tell Thank Thanks That The Their Then There "
    "These They This Those Though Thus To Today Tomorrow Try Turn Until Wait Was We Were What When "
    "Where Whether Which While Who Why Will With Would Yes Yesterday Yet You Your".split()
)

# Titles before a name, with or without a full stop: "Dr. Brown", "Mr Smith".
TITLES = {
    "Mr": "mister",
    "Mrs": "missus",
    "Ms": "miz",
    "Messrs": "messers",
    "Dr": "doctor",
    "Drs": "doctors",
    "Prof": "professor",
    "Rev": "reverend",
    "Hon": "honorable",
    "Gen": "general",
    "Col": "colonel",
    "Maj": "major",
    "Capt": "captain",
    "Cpl": "corporal",
    "Lt": "lieutenant",
    "Lieut": "lieutenant",
    "Sgt": "sergeant",
    "Pvt": "private",
    "Adm": "admiral",
    "Cmdr": "commander",
    "Atty": "attorney",
    "Mme": "madame",
    "Mlle": "mademoiselle",
    "Det": "detective",
    "Insp": "inspector",
    "Supt": "superintendent",
    "Gov": "governor",
    "Sen": "senator",
    "Sens": "senators",
    "Rep": "representative",
    "Pres": "president",
    "Mt": "mount",
    "Mts": "mounts",
    "St": "saint",
    "Ft": "fort",
}
# Names that follow "Saint" in names of places, churches and days. Before another word, as in "We live
# on Oak St. Come and see us.", "St." is a street.
SAINTS = set(
    "Agnes Alban Albans Andrew Andrews Ann Anne Anselm Anthony Augustine Barnabas Bartholomew Bede "
    "Benedict Bernard Boniface Brendan Bridget Catharines Catherine Cecilia Charles Christopher "
    "Clair Clare Cloud Columba Croix Cuthbert Cyril David Davids Denis Dominic Dunstan Edmund Edward "
    "Elizabeth Eustace Francis Gabriel Gall Gallen George Germain Giles Helena Helens Helier Hilda "
    "Hubert Ignatius Isidore Ives James Jean Jerome Joan John Johns Johnsbury Joseph Jude Julian "
    "Kevin Kilda Kitts Laurent Lawrence Lazarus Leger Leo Leonard Leonards Louis Lucia Lucie Luke "
    "Magnus Malo Margaret Maria Mark Martin Martins Mary Marys Matthew Michael Michaels Moritz "
    "Nazaire Neots Nicholas Nick Olaf Oswald Pancras Patrick Patricks Paul Pauls Peter Peters "
    "Petersburg Philip Pius Regis Rose Simon Stephen Stephens Swithin Teresa Thomas Tropez Ursula "
    "Valentine Valentines Vincent Vitus Wenceslas Winifred Xavier".split()
)
# Abbreviations that mean a street if they follow a name: "Elm Dr.", "Main St.".
STREETS = {
    "St": "street",
    "Dr": "drive",
    "Ave": "avenue",
    "Blvd": "boulevard",
    "Rd": "road",
    "Ln": "lane",
    "Sq": "square",
    "Hwy": "highway",
    "Pkwy": "parkway",
    "Ct": "court",
    "Pl": "place",
    "Ter": "terrace",
}
# First names that older texts shorten. A full stop must follow.
FIRST_NAMES = {
    "Benj": "benjamin",
    "Chas": "charles",
    "Geo": "george",
    "Jas": "james",
    "Jos": "joseph",
    "Robt": "robert",
    "Thos": "thomas",
    "Wm": "william",
}
# States of the USA. These abbreviations have no other usual meaning.
STATES = {
    "Ala": "alabama",
    "Ariz": "arizona",
    "Calif": "california",
    "Colo": "colorado",
    "Conn": "connecticut",
    "Fla": "florida",
    "Kans": "kansas",
    "Mich": "michigan",
    "Minn": "minnesota",
    "Nebr": "nebraska",
    "Nev": "nevada",
    "Okla": "oklahoma",
    "Tenn": "tennessee",
    "Wyo": "wyoming",
}
# States whose abbreviations are expanded only after the name of a town: "Portland, Ore.".
STATES_AFTER_TOWNS = {
    "Ark": "arkansas",
    "Del": "delaware",
    "Ga": "georgia",
    "Ill": "illinois",
    "Ind": "indiana",
    "Kan": "kansas",
    "Ky": "kentucky",
    "La": "louisiana",
    "Mass": "massachusetts",
    "Md": "maryland",
    "Miss": "mississippi",
    "Mo": "missouri",
    "Mont": "montana",
    "Neb": "nebraska",
    "Ore": "oregon",
    "Pa": "pennsylvania",
    "Tex": "texas",
    "Va": "virginia",
    "Vt": "vermont",
    "Wash": "washington",
    "Wis": "wisconsin",
}
# Codes of states that are also words. After a town, these codes are read as the names of the
# states: "Cleveland, OH".
STATE_CODES = {"HI": "hawaii", "IN": "indiana", "ME": "maine", "OH": "ohio", "OR": "oregon"}
# Counties whose names follow "Co.": "Co. Cork".
COUNTIES = (
    "Antrim Armagh Carlow Cavan Clare Cork Derry Donegal Down Dublin Durham Fermanagh Galway Kerry "
    "Kildare Kilkenny Laois Leitrim Limerick Longford Louth Mayo Meath Monaghan Offaly Roscommon "
    "Sligo Tipperary Tyrone Waterford Westmeath Wexford Wicklow"
).split()
# Names and words after "N.", "S.", "E." and "W." that show that the letter is a direction.
REGIONS = (
    "Africa America Carolina Dakota Ireland Korea London Wales Yorkshire coast Coast side Side wing Wing"
).split()
# Abbreviations that are always expanded if a full stop follows.
ABBREVIATIONS = {
    "etc": "et cetera",
    "e.g": "for example",
    "i.e": "that is",
    "a.k.a": "also known as",
    "ph.d": "p h d",
    "et al": "and others",
    "vs": "versus",
    "cf": "compare",
    "viz": "namely",
    "approx": "approximately",
    "max": "maximum",
    "min": "minimum",
    "esp": "especially",
    "inc": "incorporated",
    "ltd": "limited",
    "corp": "corporation",
    "co": "company",
    "bros": "brothers",
    "jr": "junior",
    "sr": "senior",
    "esq": "esquire",
    "ave": "avenue",
    "blvd": "boulevard",
    "hwy": "highway",
    "rd": "road",
    "dept": "department",
    "govt": "government",
    "univ": "university",
    "apt": "apartment",
    "misc": "miscellaneous",
    "incl": "including",
    "avg": "average",
    "orig": "original",
    "feat": "featuring",
    "utd": "united",
    "qty": "quantity",
    "qtr": "quarter",
}
# Abbreviations that are expanded before a colon, such as "Qty: 5" in a form.
LABELS = {name: ABBREVIATIONS[name] for name in "qty approx avg dept apt misc".split()}
# Abbreviations that are expanded only before a number.
BEFORE_NUMBERS = {
    "no": "number",
    "nos": "numbers",
    "p": "page",
    "pp": "pages",
    "pg": "page",
    "para": "paragraph",
    "rm": "room",
    "vol": "volume",
    "vols": "volumes",
    "ch": "chapter",
    "chap": "chapter",
    "app": "appendix",
    "ep": "episode",
    "bldg": "building",
    "jct": "junction",
    "rte": "route",
    "fig": "figure",
    "figs": "figures",
    "sec": "section",
    "art": "article",
    "ste": "suite",
    "ext": "extension",
    "tel": "telephone",
    "op": "opus",
    "eq": "equation",
    "ca": "circa",
    "c": "circa",
}
# Abbreviations that are expanded before a single capital letter: "Fig. A".
BEFORE_LETTERS = "bldg fig figs rm sec vol".split()

# After these words, digits are spoken one by one: "My PIN is 4321".
CODES = "code passcode password passphrase pin otp serial extension ext acct account id".split()
# After one of these words and "number", digits are spoken one by one: "phone number 5551234".
NUMBERED_CODES = (
    "phone telephone mobile cell fax routing tracking confirmation reference booking order invoice "
    "ticket case card passport license licence policy member membership customer employee badge "
    "registration security part batch lot"
).split()

# If one of these words precedes a Roman numeral, the numeral is a number: "Chapter IV". After a
# word in COUNTED_OR_LETTERED, a single letter stays a letter: "Appendix C".
COUNTED = "Act Article Book Canto Chapter Part Phase Scene Schedule Stage Title Volume".split()
# Words of headings in capitals, such as "CHAPTER I".
HEADINGS = [*COUNTED, *"Appendix Lesson Letter Section Stave".split()]
COUNTED_OR_LETTERED = (
    "Annex Appendix Bowl Class Figure Level Mark Number Section Table Type".split()
)
# After these words, the single letters I and V are numbers too: "a Type I error".
NUMBERED_WITH_I = "Class Figure Grade Level Mark Section Table Type".split()
# If one of these names precedes a Roman numeral, the numeral is an ordinal: "Louis XIV", "Pope Pius
# XII".
MONARCHS = (
    "Alexander Alfonso Benedict Boniface Carlos Catherine Charles Christian Clement Constantine "
    "Edward Elizabeth Emmanuel Ferdinand Francis Frederick George Gregory Gustav Haakon Harald "
    "Henry Innocent Ivan James John Juan Julius Leo Leopold Louis Ludwig Manuel Mary Napoleon "
    "Nicholas Olav Oscar Otto Paul Pedro Peter Philip Pius Ramesses Ramses Richard Robert Rudolf "
    "Sixtus Stephen Umberto Urban Victor Wilhelm William"
).split()
CROWNS = "King Queen Pope Emperor Empress Tsar Czar Kaiser Prince Duke".split()
# Roman numerals that are numbers after any name ("Rocky III"), because these letters are neither
# words nor initials.
SURE_NUMERALS = "II III VII VIII IX XII XIII XIV XVI XVII XVIII XIX XXI".split()

# Books of the Bible. After the name of a book, "3:16" is a chapter and a verse.
BIBLE = (
    "Genesis Exodus Leviticus Numbers Deuteronomy Joshua Judges Samuel Kings Chronicles Job Psalm "
    "Psalms Proverbs Ecclesiastes Isaiah Jeremiah Ezekiel Daniel Hosea Matthew Mark Luke John Acts "
    "Romans Corinthians Galatians Ephesians Philippians Colossians Timothy Titus Hebrews James "
    "Peter Jude Revelation"
).split()
# Short forms of the names of Bible books. A chapter and a verse follow these forms: "Rom. 8:28".
SHORT_BIBLE = {
    "Gen": "Genesis", "Exod": "Exodus", "Lev": "Leviticus", "Num": "Numbers", "Deut": "Deuteronomy",
    "Josh": "Joshua", "Judg": "Judges", "Sam": "Samuel", "Kgs": "Kings", "Chron": "Chronicles",
    "Chr": "Chronicles", "Ps": "Psalm", "Pss": "Psalms", "Prov": "Proverbs", "Eccl": "Ecclesiastes",
    "Isa": "Isaiah", "Jer": "Jeremiah", "Ezek": "Ezekiel", "Dan": "Daniel", "Hos": "Hosea",
    "Mic": "Micah", "Zech": "Zechariah", "Mal": "Malachi", "Mt": "Matthew", "Matt": "Matthew",
    "Mk": "Mark", "Lk": "Luke", "Jn": "John", "Rom": "Romans", "Cor": "Corinthians",
    "Gal": "Galatians", "Eph": "Ephesians", "Phil": "Philippians", "Col": "Colossians",
    "Thess": "Thessalonians", "Tim": "Timothy", "Heb": "Hebrews", "Jas": "James", "Pet": "Peter",
    "Rev": "Revelation",
}  # fmt: skip

# Units that are expanded after a number, each in singular and plural.
UNITS = {
    short: (names.split("|")[0], names.split("|")[-1])
    for short, names in {
        "µg": "microgram|micrograms",
        "mg": "milligram|milligrams",
        "g": "gram|grams",
        "kg": "kilogram|kilograms",
        "t": "ton|tons",
        "oz": "ounce|ounces",
        "fl oz": "fluid ounce|fluid ounces",
        "lb": "pound|pounds",
        "lbs": "pound|pounds",
        "lb-ft": "pound foot|pound feet",
        "ft-lb": "foot pound|foot pounds",
        "ft-lbs": "foot pound|foot pounds",
        "nm": "nanometer|nanometers",
        "µm": "micrometer|micrometers",
        "mm": "millimeter|millimeters",
        "cm": "centimeter|centimeters",
        "m": "meter|meters",
        "km": "kilometer|kilometers",
        "ly": "light-year|light-years",
        "Å": "angstrom|angstroms",
        "in": "inch|inches",
        "ft": "foot|feet",
        "yd": "yard|yards",
        "yds": "yard|yards",
        "mi": "mile|miles",
        "sq ft": "square foot|square feet",
        "sq mi": "square mile|square miles",
        "sq in": "square inch|square inches",
        "sq yd": "square yard|square yards",
        "cu ft": "cubic foot|cubic feet",
        "cu in": "cubic inch|cubic inches",
        "cu yd": "cubic yard|cubic yards",
        "tsp": "teaspoon|teaspoons",
        "tbsp": "tablespoon|tablespoons",
        "ha": "hectare|hectares",
        "gal": "gallon|gallons",
        "qt": "quart|quarts",
        "qts": "quart|quarts",
        "µl": "microliter|microliters",
        "µL": "microliter|microliters",
        "ml": "milliliter|milliliters",
        "mL": "milliliter|milliliters",
        "cl": "centiliter|centiliters",
        "dL": "deciliter|deciliters",
        "l": "liter|liters",
        "L": "liter|liters",
        "ns": "nanosecond|nanoseconds",
        "µs": "microsecond|microseconds",
        "ms": "millisecond|milliseconds",
        "s": "second|seconds",
        "sec": "second|seconds",
        "secs": "second|seconds",
        "min": "minute|minutes",
        "mins": "minute|minutes",
        "h": "hour|hours",
        "hr": "hour|hours",
        "hrs": "hour|hours",
        "wk": "week|weeks",
        "wks": "week|weeks",
        "yr": "year|years",
        "yrs": "year|years",
        "mo": "month|months",
        "mos": "month|months",
        "mpg": "mile per gallon|miles per gallon",
        "mph": "mile per hour|miles per hour",
        "kph": "kilometer per hour|kilometers per hour",
        "rpm": "revolution per minute|revolutions per minute",
        "bpm": "beat per minute|beats per minute",
        "Hz": "hertz",
        "kHz": "kilohertz",
        "MHz": "megahertz",
        "GHz": "gigahertz",
        "dB": "decibel|decibels",
        "µV": "microvolt|microvolts",
        "mV": "millivolt|millivolts",
        "V": "volt|volts",
        "kV": "kilovolt|kilovolts",
        "µA": "microampere|microamperes",
        "mA": "milliampere|milliamperes",
        "mAh": "milliampere hour|milliampere hours",
        "µF": "microfarad|microfarads",
        "nF": "nanofarad|nanofarads",
        "pF": "picofarad|picofarads",
        "µW": "microwatt|microwatts",
        "mW": "milliwatt|milliwatts",
        "W": "watt|watts",
        "kW": "kilowatt|kilowatts",
        "MW": "megawatt|megawatts",
        "GW": "gigawatt|gigawatts",
        "kWh": "kilowatt hour|kilowatt hours",
        "hp": "horsepower",
        "Ω": "ohm|ohms",
        "kΩ": "kiloohm|kiloohms",
        "Pa": "pascal|pascals",
        "hPa": "hectopascal|hectopascals",
        "kPa": "kilopascal|kilopascals",
        "psi": "pound per square inch|pounds per square inch",
        "cal": "calorie|calories",
        "kcal": "kilocalorie|kilocalories",
        "kJ": "kilojoule|kilojoules",
        "MJ": "megajoule|megajoules",
        "GJ": "gigajoule|gigajoules",
        "TWh": "terawatt hour|terawatt hours",
        "GWh": "gigawatt hour|gigawatt hours",
        "MWh": "megawatt hour|megawatt hours",
        "Wh": "watt hour|watt hours",
        "MPa": "megapascal|megapascals",
        "kN": "kilonewton|kilonewtons",
        "keV": "kiloelectronvolt|kiloelectronvolts",
        "MeV": "megaelectronvolt|megaelectronvolts",
        "eV": "electronvolt|electronvolts",
        "KB": "kilobyte|kilobytes",
        "kB": "kilobyte|kilobytes",
        "MB": "megabyte|megabytes",
        "GB": "gigabyte|gigabytes",
        "TB": "terabyte|terabytes",
        "Mbps": "megabit per second|megabits per second",
        "Gbps": "gigabit per second|gigabits per second",
        "Mbit": "megabit|megabits",
        "Gbit": "gigabit|gigabits",
        "°C": "degree celsius|degrees celsius",
        "°F": "degree fahrenheit|degrees fahrenheit",
        "° C": "degree celsius|degrees celsius",
        "° F": "degree fahrenheit|degrees fahrenheit",
        "°": "degree|degrees",
    }.items()
}
# Words and units that may follow an amount and a slash, as in "$5/hour".
PER = {word: word for word in "second minute hour day night week month year person page".split()}
PER |= {"hr": "hour", "mo": "month", "yr": "year", "wk": "week", "min": "minute", "sec": "second"}
PER |= {"bbl": "barrel", "ton": "ton", "acre": "acre"}
PER |= {unit: UNITS[unit][0] for unit in "kg g lb oz l L km m ft gal mi".split()}

_CENTS = "cent", "cents"
# Maps each currency symbol before a number to four names: the currency in singular and plural, and
# the subunit (1/100 of the currency) in singular and plural.
CURRENCIES = {
    "$": ("dollar", "dollars", *_CENTS),
    "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", *_CENTS),
    "¥": ("yen", "yen", "", ""),
    "₹": ("rupee", "rupees", "paisa", "paise"),
    "R$": ("brazilian real", "brazilian reals", "centavo", "centavos"),
} | {
    f"{letters}$": (f"{country} dollar", f"{country} dollars", *_CENTS)
    for letters, country in {
        "US": "u s",
        "us": "u s",
        "A": "australian",
        "AU": "australian",
        "C": "canadian",
        "CA": "canadian",
        "HK": "hong kong",
        "NT": "new taiwan",
        "NZ": "new zealand",
        "S": "singapore",
        "SG": "singapore",
    }.items()
}
CURRENCY_CODES = {
    "AUD": "A$",
    "BRL": "R$",
    "CAD": "C$",
    "EUR": "€",
    "GBP": "£",
    "HKD": "HK$",
    "INR": "₹",
    "JPY": "¥",
    "NZD": "NZ$",
    "SGD": "S$",
    "TWD": "NT$",
    "USD": "US$",
}

# Symbols that are always converted to words.
SIGNS = {
    "&": "and",
    "%": "percent",
    "‰": "per mille",
    "°": "degrees",
    "@": "at",
    "+": "plus",
    "=": "equals",
    "×": "times",
    "÷": "divided by",
    "±": "plus or minus",
    "≤": "less than or equal to",
    "≥": "greater than or equal to",
    "≠": "does not equal",
    "≈": "approximately",
    "√": "square root of",
    "∞": "infinity",
    "©": "copyright",
    "®": "registered",
    "™": "trademark",
    "§": "section",
    "¶": "paragraph",
    "$": "dollar",
    "£": "pound",
    "€": "euro",
    "¥": "yen",
    "₹": "rupee",
    "¢": "cent",
}
# Words for the punctuation and symbols in web addresses.
ADDRESS_SIGNS = {
    ".": "dot",
    "/": "slash",
    ":": "colon",
    "-": "dash",
    "_": "underscore",
    "~": "tilde",
    "?": "question mark",
    "=": "equals",
    "&": "and",
    "#": "hash",
    "%": "percent",
    "@": "at",
    "+": "plus",
}
# Endings of domain names and file names, except endings that are English words.
DOMAINS = (
    "com org net edu gov mil int io ai app dev info biz tv eu uk de fr nl ch ca au jp cn ru"
).split()
FILE_ENDINGS = (
    "py md txt csv tsv json html htm pdf jpe?g png gif svg wav mp3 mp4 flac zip exe docx? xlsx? "
    "cpp js sh xml ya?ml"
).split()
SPELLED_IN_ADDRESSES = {"io", "ai", "edu", "uk", "eu", "au", "ca", "exe", "gif", "de", "py"}

# Words in capitals that are spelled out letter by letter, even if the whole text is in capitals.
INITIALISMS = set(
    "ABC AC ACLU ADHD AEST AI ASAP BA BBC BYOB CBS CD CEO CEST CIA CNN CPU DC DIY DNA DVD EEOC ESPN EU FAQ FBI "
    "GPS GPU HD HIV IBM ID IEEE IIRC IMF IMHO IOU IQ IRA ISBN MIT MP NAACP NBA NBC NCAA NFL NGO NHS NSA NY "
    "NYPD NYSE OECD OK PC PM PR RSVP SPCA TV UAE UCLA UFO UK UN UNHCR URL USA USAF USB USPS USSR "
    "VIP WWW YMCA YWCA".split()
)
# Time zones, which are spelled out letter by letter after a time, as in 8 PM EST.
TIME_ZONES = set("ET CT MT PT EST EDT CST CDT MST MDT PST PDT AEST UTC CET CEST EET".split())
# Short words in capitals that are not spelled out letter by letter, because authors may write these
# words in capitals for emphasis. Longer names in capitals, such as NASA and UNESCO, are
# read as words too.
WORDS_IN_CAPITALS = set(
    "AM AN AS AT BE BY DO GO HE HI IF IN IS ME MY NO OF OH ON OR SO TO UP WE AH OX "
    "ACT ADD AGE AIR ALL AND ANY ARE ARM ART ASK BAD BAG BED BIG BOX BOY BUS BUT BUY CAN CAR CAT "
    "CUT DAD DAY DEN DID DOG DON DRY DUE EAR EAT EGG END EVE EYE FAR FEW FIT FIX FLY FOR FUN GAS "
    "GET GOD GOT GUN HAD HAS HAT HER HIM HIS HIT HOT HOW ICE ILL ITS JOB JOY KEY KID LAW LAY LED "
    "LEG LET LIE LOT LOW MAD MAN MAP MAY MEN MET MIX MOM MUM NET NEW NOR NOT NOW ODD OFF OIL OLD "
    "ONE OUR OUT OWE OWN PAY PEN PET POP PUT RAN RED RID ROW RUN SAD SAT SAW SAY SEA SEE SET SHE "
    "SIR SIT SIX SKY SON SUN TAX TEA TEN THE TIE TOO TOP TRY TWO USE VIA WAR WAS WAY WET WHO WHY "
    "WIN WON WOW YES YET YOU HEY AGO END TRY ZOO "
    "GIF JAR LAN PIN RAM ROM SARS SIM WAN ZIP".split()
)
# Words in WORDS_IN_CAPITALS that authors write in capitals for emphasis, or that are always names.
# The other words in WORDS_IN_CAPITALS may be abbreviations of several words, such as "ICE" in "ICE
# agents".
NEVER_INITIALS = set(
    "AN AS AT BE BY DO GO HE HI IF IN IS ME MY NO OF OH ON SO TO UP WE AH ALL AND ANY ARE BAD BIG BUT "
    "CAN DID DON DUE FAR FEW FOR FUN GET GOT HAD HAS HER HIM HIS HOT HOW ITS LET LOT LOW MAD MAY NEW NOR "
    "NOT NOW OFF OLD ONE OUR OUT OWN PAY PUT RAN RED SAD SAW SAY SEE SHE SIX TEN THE TOO TRY TWO USE "
    "WAR WAS WET WHY WIN WON WOW YES YET YOU HEY AGO END "
    "GIF JAR LAN PIN RAM ROM SARS SIM WAN ZIP".split()
)
# Maps words in capitals to the words that may follow them. The words in capitals are spelled out letter
# by letter before these words ("AM radio"), and after an article, "has" or "with" ("the OR").
INITIALS_BEFORE = {
    "ADD": "diagnosis medication symptoms",
    "AM": "radio radios station stations band broadcast broadcasts frequency",
    "LED": "bulb bulbs display displays lamp lamps light lights screen strip strips TV",
    "OR": "nurse nurses staff table",
    "SAT": "exam exams prep score scores test tests",
    "WHO": "chief director guidelines report",
}
# Groups of two or three consonants that begin English words. Words in capitals that begin with other
# groups of consonants, such as NCAA and HDMI, are spelled out letter by letter.
ONSETS = (
    "BL BR CH CHR CL CR DR DW FL FR GH GL GN GR KN KR PH PL PR PS PN RH SC SCH SCR SH SHR SK SL SM "
    "SN SP SPH SPL SPR SQ ST STR SW TH THR TR TW WH WR"
).split()
# Groups of consonants that end English words. Words in capitals that end with other groups of
# consonants, such as UCSD and IETF, are spelled out letter by letter.
CODAS = set(
    "BS BT BTS CH CHS CK CKS CS CT CTS DD DDS DS DST DTH FF FFS FS FT FTH FTS GG GGS GH GHS GHT GHTH "
    "GHTS GN GNS GS KS LB LBS LCH LD LDS LF LFS LFTH LK LKS LL LLS LM LMS LN LNS LP LPS LPT LS LT LTH "
    "LTS LTZ MB MBS MM MN MNS MP MPH MPHS MPS MPT MPTS MS NCH ND NDS NG NGS NGST NGTH NGTHS NK NKS "
    "NN NNS NS NST NT NTH NTHS NTS NX NZ PH PHS PP PPS PS PT PTH PTHS PTS RB RBS RC RCH RCS RD RDS RF "
    "RFS RG RGS RK RKS RL RLD RLDS RLS RM RMS RMTH RN RNS RNT RP RPS RR RRS RS RSH RST RSTS RT RTH RTHS "
    "RTS RTZ SC SCS SH SK SKS SM SMS SP SPS SS ST STS TCH TH THS TS TT TTS VS WD WDS WK WKS WL WLS WN "
    "WNS WS WTH XT XTH XTHS XTS ZZ".split()
)
# Abbreviations in lower case that are spelled out letter by letter.
SPELLED_IN_CHATS = "asap brb btw fyi idc idk iirc ikr imho imo irl lmk nvm omg tbh ttyl wtf".split()
# Chat abbreviations that look like words. Abbreviations that cannot be pronounced as English words,
# such as "lmao", are not listed.
CHAT = "abt afaik dm ily sry wyd".split()
