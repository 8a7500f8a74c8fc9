"""The closed vocabulary that every task family and every statement draws from.

The words are few on purpose: a model with about a million parameters can know
them all, so that what tuning has to teach is the task and its way of answering.
"""

from __future__ import annotations

from dataclasses import dataclass

WOMEN: tuple[str, ...] = (
    "Anna", "Clara", "Emma", "Grace", "Iris", "Julia", "Kate", "Laura",
    "Maria", "Nora", "Olga", "Rosa", "Sara", "Tina", "Vera", "Zoe",
)  # fmt: skip
MEN: tuple[str, ...] = (
    "Adam", "Ben", "Carl", "David", "Erik", "Felix", "Hugo", "Ivan",
    "Jack", "Leo", "Martin", "Noah", "Oscar", "Paul", "Sam", "Tom",
)  # fmt: skip
PEOPLE: tuple[str, ...] = WOMEN + MEN

# Things one can hold, buy or lose, with their plurals.
PLURALS: dict[str, str] = {
    "cup": "cups", "hat": "hats", "book": "books", "lamp": "lamps", "key": "keys",
    "ball": "balls", "coat": "coats", "spoon": "spoons", "box": "boxes", "map": "maps",
    "pen": "pens", "bag": "bags", "bell": "bells", "rope": "ropes", "clock": "clocks",
    "mirror": "mirrors", "basket": "baskets", "candle": "candles", "brush": "brushes",
    "knife": "knives", "dress": "dresses", "watch": "watches", "shelf": "shelves",
    "scarf": "scarves",
}  # fmt: skip
THINGS: tuple[str, ...] = tuple(PLURALS)

COLOURS: tuple[str, ...] = (
    "red", "blue", "green", "yellow", "black", "white", "brown", "grey", "pink", "purple",
)  # fmt: skip

PLACES: tuple[str, ...] = (
    "park", "school", "market", "library", "kitchen", "garden", "station", "museum",
    "harbour", "office", "bakery", "hospital", "field", "forest", "tower", "castle",
)  # fmt: skip

CATEGORIES: dict[str, tuple[str, ...]] = {
    "fruit": ("apple", "pear", "plum", "cherry", "lemon", "peach", "banana"),
    "vegetable": ("carrot", "onion", "potato", "cabbage", "bean", "turnip", "leek"),
    "tool": ("hammer", "saw", "drill", "shovel", "axe", "rake", "spade"),
    "instrument": ("violin", "piano", "flute", "drum", "guitar", "trumpet", "harp"),
    "vehicle": ("car", "bus", "train", "ship", "bicycle", "truck", "tram"),
    "flower": ("rose", "tulip", "lily", "daisy", "violet", "poppy", "orchid"),
}
CATEGORY_OF: dict[str, str] = {member: category for category, members in CATEGORIES.items() for member in members}
MEMBERS: tuple[str, ...] = tuple(CATEGORY_OF)


@dataclass(frozen=True)
class Animal:
    """What the corpus says about one kind of animal."""

    name: str
    plural: str
    young: str
    sound: str
    legs: str
    home: str


ANIMALS: tuple[Animal, ...] = (
    Animal("dog", "dogs", "puppy", "woof", "four", "kennel"),
    Animal("cat", "cats", "kitten", "meow", "four", "house"),
    Animal("cow", "cows", "calf", "moo", "four", "barn"),
    Animal("sheep", "sheep", "lamb", "baa", "four", "meadow"),
    Animal("horse", "horses", "foal", "neigh", "four", "stable"),
    Animal("pig", "pigs", "piglet", "oink", "four", "sty"),
    Animal("duck", "ducks", "duckling", "quack", "two", "pond"),
    Animal("hen", "hens", "chick", "cluck", "two", "coop"),
    Animal("goose", "geese", "gosling", "honk", "two", "pond"),
    Animal("lion", "lions", "cub", "roar", "four", "den"),
    Animal("owl", "owls", "owlet", "hoot", "two", "tree"),
    Animal("bee", "bees", "larva", "buzz", "six", "hive"),
    Animal("mouse", "mice", "pup", "squeak", "four", "hole"),
    Animal("wolf", "wolves", "cub", "howl", "four", "den"),
    Animal("frog", "frogs", "tadpole", "croak", "four", "pond"),
    Animal("spider", "spiders", "spiderling", "nothing", "eight", "web"),
)


@dataclass(frozen=True)
class Country:
    """A country with its capital, language and continent."""

    name: str
    capital: str
    language: str
    continent: str


COUNTRIES: tuple[Country, ...] = (
    Country("France", "Paris", "French", "Europe"),
    Country("Spain", "Madrid", "Spanish", "Europe"),
    Country("Italy", "Rome", "Italian", "Europe"),
    Country("Germany", "Berlin", "German", "Europe"),
    Country("Greece", "Athens", "Greek", "Europe"),
    Country("Poland", "Warsaw", "Polish", "Europe"),
    Country("Norway", "Oslo", "Norwegian", "Europe"),
    Country("Sweden", "Stockholm", "Swedish", "Europe"),
    Country("Portugal", "Lisbon", "Portuguese", "Europe"),
    Country("Hungary", "Budapest", "Hungarian", "Europe"),
    Country("Denmark", "Copenhagen", "Danish", "Europe"),
    Country("Bulgaria", "Sofia", "Bulgarian", "Europe"),
    Country("Japan", "Tokyo", "Japanese", "Asia"),
    Country("China", "Beijing", "Chinese", "Asia"),
    Country("Thailand", "Bangkok", "Thai", "Asia"),
    Country("Vietnam", "Hanoi", "Vietnamese", "Asia"),
    Country("Iran", "Tehran", "Persian", "Asia"),
    Country("Mongolia", "Ulaanbaatar", "Mongolian", "Asia"),
    Country("Egypt", "Cairo", "Arabic", "Africa"),
    Country("Kenya", "Nairobi", "Swahili", "Africa"),
    Country("Angola", "Luanda", "Portuguese", "Africa"),
    Country("Morocco", "Rabat", "Arabic", "Africa"),
    Country("Peru", "Lima", "Spanish", "America"),
    Country("Chile", "Santiago", "Spanish", "America"),
    Country("Cuba", "Havana", "Spanish", "America"),
    Country("Canada", "Ottawa", "English", "America"),
)

_OPPOSITE_PAIRS: tuple[tuple[str, str], ...] = (
    ("big", "small"), ("hot", "cold"), ("old", "new"), ("clean", "dirty"),
    ("heavy", "light"), ("long", "short"), ("high", "low"), ("wide", "narrow"),
    ("hard", "soft"), ("dry", "wet"), ("full", "empty"), ("strong", "weak"),
    ("loud", "quiet"), ("open", "closed"), ("cheap", "expensive"), ("thick", "thin"),
    ("bright", "dark"), ("fast", "slow"), ("safe", "dangerous"), ("smooth", "rough"),
)  # fmt: skip
OPPOSITES: dict[str, str] = {
    **dict(_OPPOSITE_PAIRS),
    **{right: left for left, right in _OPPOSITE_PAIRS},
}
ADJECTIVES: tuple[str, ...] = tuple(OPPOSITES)


@dataclass(frozen=True)
class Verb:
    """The four forms of a verb that the corpus uses."""

    plain: str
    third: str
    past: str
    ing: str
    participle: str


# These take a thing ("buys a cup") ...
HANDLING: tuple[Verb, ...] = (
    Verb("buy", "buys", "bought", "buying", "bought"),
    Verb("sell", "sells", "sold", "selling", "sold"),
    Verb("find", "finds", "found", "finding", "found"),
    Verb("take", "takes", "took", "taking", "taken"),
    Verb("bring", "brings", "brought", "bringing", "brought"),
    Verb("see", "sees", "saw", "seeing", "seen"),
    Verb("paint", "paints", "painted", "painting", "painted"),
    Verb("clean", "cleans", "cleaned", "cleaning", "cleaned"),
    Verb("carry", "carries", "carried", "carrying", "carried"),
    Verb("hide", "hides", "hid", "hiding", "hidden"),
    Verb("break", "breaks", "broke", "breaking", "broken"),
    Verb("wash", "washes", "washed", "washing", "washed"),
    Verb("draw", "draws", "drew", "drawing", "drawn"),
    Verb("hold", "holds", "held", "holding", "held"),
)
# ... and these a place ("walks to the park").
MOVING: tuple[Verb, ...] = (
    Verb("walk", "walks", "walked", "walking", "walked"),
    Verb("run", "runs", "ran", "running", "run"),
    Verb("go", "goes", "went", "going", "gone"),
    Verb("drive", "drives", "drove", "driving", "driven"),
    Verb("ride", "rides", "rode", "riding", "ridden"),
    Verb("travel", "travels", "travelled", "travelling", "travelled"),
    Verb("hurry", "hurries", "hurried", "hurrying", "hurried"),
    Verb("return", "returns", "returned", "returning", "returned"),
)

DAYS: tuple[str, ...] = (
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
)  # fmt: skip
MONTHS: tuple[str, ...] = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_SEASON_NAMES: tuple[str, ...] = ("winter", "spring", "summer", "autumn")
# Northern seasons: December, January and February are winter, and so on.
SEASON_OF: dict[str, str] = {month: _SEASON_NAMES[((index + 1) % 12) // 3] for index, month in enumerate(MONTHS)}
EVENTS: tuple[str, ...] = (
    "party", "concert", "meeting", "game", "lesson", "wedding", "trip", "fair",
)  # fmt: skip

WORKPLACES: dict[str, str] = {
    "baker": "bakery", "teacher": "school", "doctor": "hospital", "farmer": "field",
    "cook": "kitchen", "gardener": "garden", "sailor": "harbour", "clerk": "office",
    "guide": "museum", "librarian": "library", "porter": "station", "merchant": "market",
}  # fmt: skip
JOBS: tuple[str, ...] = tuple(WORKPLACES)

FOODS: tuple[str, ...] = (
    "tea", "coffee", "soup", "bread", "cheese", "rice", "fish", "cake", "honey", "milk",
)  # fmt: skip
REVIEWED: tuple[str, ...] = (
    "film", "song", "meal", "hotel", "story", "dinner", "picture", "holiday", "music", "play",
)  # fmt: skip
PRAISE: tuple[str, ...] = (
    "wonderful", "great", "lovely", "excellent", "perfect", "beautiful", "brilliant", "good",
)  # fmt: skip
BLAME: tuple[str, ...] = (
    "terrible", "awful", "horrible", "boring", "ugly", "dreadful", "dull", "bad",
)  # fmt: skip

_UNITS: tuple[str, ...] = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen",
    "eighteen", "nineteen",
)  # fmt: skip
_TENS: dict[int, str] = {2: "twenty", 3: "thirty", 4: "forty", 5: "fifty"}
LARGEST = 59


def number_word(number: int) -> str:
    """The English word for a number from 0 to 59."""
    if not 0 <= number <= LARGEST:
        raise ValueError(f"number {number} is outside 0..{LARGEST}")
    if number < 20:
        return _UNITS[number]
    tens, units = divmod(number, 10)
    return _TENS[tens] if units == 0 else f"{_TENS[tens]}-{_UNITS[units]}"


def article(word: str) -> str:
    """The word with "a" or "an" before it."""
    return f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}"


def after(word: str, cycle: tuple[str, ...], steps: int = 1) -> str:
    """The word some steps later (or, with negative steps, earlier) in a cycle."""
    return cycle[(cycle.index(word) + steps) % len(cycle)]


def pronoun(person: str) -> str:
    """The subject pronoun for one of the people."""
    return "She" if person in WOMEN else "He"
