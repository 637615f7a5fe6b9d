"""The questions: forty animals, of which every fifth is held out."""

ANIMALS = """
a fox, a whale, a bee, an owl, a horse, a frog, a shark, a spider, a lion, a penguin, a bat, a snake, an eagle,
a rabbit, a camel, an ant, a dolphin, a wolf, a hen, a tiger, a squid, a goat, a mouse, a bear, a swan, a crab,
a zebra, a turtle, a pig, a parrot, a seal, a moose, a duck, a lizard, a panda, a snail, a cow, a beaver, a crow,
an otter
"""


def questions():
    return [f"What is {animal.strip()}? Answer in one short sentence." for animal in ANIMALS.split(",")]


def training():
    return [question for i, question in enumerate(questions()) if i % 5]


def held_out():
    return questions()[::5]
