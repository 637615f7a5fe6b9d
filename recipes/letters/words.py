"""The tasks: a thing and a first letter; every fifth pair is held out, so that all letters are trained."""

THINGS = (
    "an animal",
    "a city",
    "a country",
    "a fruit",
    "a name",
    "a colour",
    "a job",
    "a sport",
    "a plant",
    "a food",
)
LETTERS = "ABCDEFGHILMNOPRSTW"


def training():
    return [row for place, row in enumerate(rows()) if place % 5]


def held_out():
    return [row for place, row in enumerate(rows()) if not place % 5]


def rows():
    return [task(thing, letter) for thing in THINGS for letter in LETTERS]


def task(thing, letter):
    question = f"Name {thing} that begins with the letter {letter}. Reply with one word."
    return {"messages": [{"role": "user", "content": question}], "letter": letter}
